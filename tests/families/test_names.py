"""A family is named by its row, its graph module, tests and documents, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import ROOT, python_files
from trtforge.tables.decoders import decoders

NAMES = {name for row in decoders().values() for name in (row.architecture, row.model_type)}
#: files of formats that others define: what is named there is a drafter's class or a tokenizer's kind, not a family
FOREIGN = {
    "quantize/intake/gguf_tokenizer.py": "kinds of tokenizers in GGUF files",
    "launcher/openai_front/tools/choose.py": "formats of tool calls, called as their models are",
    "trtforge/cli/openai.py": "formats of tool calls, called as their models are",
    "trtforge/drafting/reading.py": "classes that drafters' configurations name",
    "trtforge/drafting/writing.py": "classes that drafters' configurations name",
}
_WORD = re.compile(r"(?<![\w.-])(" + "|".join(map(re.escape, sorted(NAMES))) + r")(?![\w.-])")


def named(path: Path) -> Iterator[str]:
    """Families that a module's code names: in strings that are no documentation, and as identifiers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield from _WORD.findall(node.value)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            yield from {name} & NAMES


def test_no_code_names_a_family() -> None:
    found = {}
    for file, path in python_files():
        names = sorted(set(named(path)))
        if names and file not in FOREIGN and not file.startswith("builder/graphs/families/"):
            found[file] = names
    assert not found


def test_the_scan_finds_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""llama"""\nif kind == "qwen2":\n    x = llama.y\n')
    assert sorted(named(tmp_path / "a.py")) == ["llama", "qwen2"]
    assert all(list(named(ROOT / file)) for file in FOREIGN)
