"""No folder imports what the layering in ``docs/concepts.md`` keeps from it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPINE = "trtforge"
#: run by a server and not by trtforge: what a repository's ``model.py`` stands on, copied or imported there
SERVED = ("triton_repo/layouts/ifb_code/", "triton_repo/layouts/llmapi_code/", "triton_repo/layouts/native_model.py")
#: the two parts of the spine that import the stages
COMPOSERS = ("trtforge/cli/", "trtforge/pipeline/")


def _layering() -> dict[str, set[str]]:
    """Folder → the folders that the table of ``docs/concepts.md`` lets it import."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    section = text.split("## Layering", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", section, re.MULTILINE)
    table: dict[str, set[str]] = {}
    for folders, may in rows:
        allowed = set(re.findall(r"\bspine\b|\b(?:plugins|runtime|triton_repo)\b", may.split(";")[0]))
        for folder in re.findall(r"`(\w+)/`", folders):
            table[folder] = {SPINE if name == "spine" else name for name in allowed}
    return table


def _imports(path: Path) -> set[str]:
    """First names of everything that a module imports, late imports and those for types included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_table_names_every_folder():
    ours = {"trtforge", "quantize", "builder", "plugins", "triton_repo", "runtime", "evals", "launcher"}
    assert set(_layering()) == ours


def test_imports_follow_the_table():
    table = _layering()
    faults = []
    for folder, may in table.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith((*SERVED, *COMPOSERS)):
                continue
            for other in sorted(_imports(path) & table.keys() - {folder} - may):
                faults.append(f"{name}: {other}")
    assert faults == []
