"""Copies modules of ours beside an emitted ``model.py``, so that a repository needs no trtforge where it is served.

The Python backend imports ``1/model.py`` as module ``1.model``; a module that lies beside it is therefore
``from .name import …``. What is copied is our own tested source with those import lines changed. The
container must have numpy, ``tokenizers`` and (for chat templates) ``jinja2``; TensorRT-LLM's containers do.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

#: module → file name beside ``model.py``: the tokenizer and all that it stands on
TOKENIZER_MODULES: Mapping[str, str] = {
    "runtime.tokenizer": "tokenizer.py",
    "runtime.detokenizer": "detokenizer.py",
    "runtime.token_bound": "token_bound.py",
    "trtforge.templates.chat_template": "chat_template.py",
    "trtforge.templates.chat_workers": "chat_workers.py",
    "trtforge.templates.chat_process": "chat_process.py",  # run as a file, which is found beside chat_workers.py
    "trtforge.ground.errors": "errors.py",
    "trtforge.ground.json_file": "json_file.py",
    "trtforge.ground.panics": "panics.py",
}


@cache
def source_of(module: str) -> Path:
    """The file of ``module``, found without running it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin)


def ship(modules: Mapping[str, str], version_dir: Path) -> None:
    """Write each module of ``modules`` as the file named there, its imports of the others made relative.

    Also keeps the server's Python from leaving bytecode in the repository: a bundle with one file more no
    longer verifies, and a *file* named ``__pycache__`` stops it.
    """
    stems = {module: name.removesuffix(".py") for module, name in modules.items()}
    pattern = re.compile(r"^(\s*)from (" + "|".join(re.escape(m) for m in stems) + r") import ", re.MULTILINE)
    for module, name in modules.items():
        text = source_of(module).read_text(encoding="utf-8")
        text = pattern.sub(lambda m: f"{m[1]}from .{stems[m[2]]} import ", text)
        (version_dir / name).write_text(text, encoding="utf-8")
    (version_dir / "__pycache__").touch()
