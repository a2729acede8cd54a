"""Parameters that name a folder: whether two of them lead to the same one, or to copies of the same thing.

A bundle names its engine relative to itself, a repository that was emitted beside an engine by its full path; both
serve the same files. A copy counts as the same when the file that describes and seals it is the same byte for byte.
"""

from __future__ import annotations

from pathlib import Path

from triton_repo.lint.files import Unreadable, read_text
from triton_repo.lint.repository import Model
from trtforge.ground.paths import real_path

#: parameter -> the file that tells one content of its folder from another
SEALS = {
    "engine_dir": "engine.json",
    "gpt_model_path": "engine.json",
    "encoder_model_path": "engine.json",
    "tokenizer_dir": "tokenizer.json",
}


def same_place(name: str, one: Model, other: Model) -> bool:
    """Whether parameter ``name`` leads to the same folder in both models; False where one leads nowhere."""
    before, after = _folder(name, one), _folder(name, other)
    if before is None or after is None or name not in SEALS:
        return False
    if _one_folder(before, after):
        return True
    sealed = [_sealed(place, SEALS[name]) for place in (before, after)]
    return sealed[0] is not None and sealed[0] == sealed[1]


def same_folder(old: object, new: object, one: Model, other: Model) -> bool:
    """Whether two texts, each seen from its own model, name one folder that is here; nothing seals a checkpoint."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    before, after = one.here(old), other.here(new)
    return before is not None and after is not None and _one_folder(before, after)


def _one_folder(before: Path, after: Path) -> bool:
    try:
        return before.samefile(after)
    except OSError:
        return False


def _folder(name: str, model: Model) -> Path | None:
    stated = model.parameter(name)
    return model.here(stated) if stated is not None else None


def _sealed(folder: Path, seal: str) -> str | None:
    """The seal's text; an engine of TensorRT-LLM lies one folder below it, and is told apart by its own name."""
    for place, beside in ((folder, ""), (folder.parent, folder.name)):
        try:
            return f"{beside}\n{read_text(place / seal, real_path(place))}"
        except (Unreadable, OSError):
            continue
    return None
