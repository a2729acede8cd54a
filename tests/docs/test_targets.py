"""A target is one object and one folder: few other files name it, and nothing lists the targets but the registry."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.support.sources import PACKAGES, ROOT, python_files
from trtforge.targets import TARGETS, Target

#: files outside a target's own that may name it
MOST = 6


@cache
def _sources() -> dict[str, str]:
    """Python outside tests and tables, by its path from the root."""
    found = {}
    for name, path in python_files(*PACKAGES, "benchmarks", "scripts"):
        if not name.startswith("trtforge/tables/") and name != "trtforge/targets/__init__.py":
            found[name] = path.read_text(encoding="utf-8")
    return found


def _module(target: Target) -> str:
    """The module of the registry that holds the object."""
    return _module_of(target.name)


@cache
def _module_of(target: str) -> str:
    holding = [name for name, text in _sources().items() if f'name="{target}"' in text]
    own = [name for name in holding if name.startswith("trtforge/targets/")]
    assert len(own) == 1, own
    return own[0].removesuffix(".py").rpartition("/")[2]


def _names(target: Target) -> re.Pattern[str]:
    """Where a target is named: its name (where that is a package's too, only as a target's), or its modules."""
    return _pattern(target.name, target.folder)


@cache
def _pattern(target: str, folder: str) -> re.Pattern[str]:
    name, module = re.escape(target), _module_of(target)
    modules = rf"\btargets\.(?:{module}|{folder})\b|\btargets import (?:.*, )?(?:{module}|{folder})\b"
    if "-" in target:
        return re.compile(rf"(?<![\w/-]){name}(?![\w-])|{modules}")
    said = rf"(?:build\.|--)target:? {name}(?![\w.-])"
    compared = rf"target\b[\"'\])]*\s*(?:==|!=|not in|in)[^\n]*[\"']{name}[\"']"
    looked_up = rf"(?:TARGETS\[|newest\(|to_target\(facts, |[\"']target[\"']: )[\"']{name}[\"']"
    return re.compile(rf"{said}|{compared}|{looked_up}|{modules}")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_few_files_name_a_target(target: Target) -> None:
    own = (f"trtforge/targets/{_module(target)}.py", f"builder/targets/{target.folder}/")
    naming = [name for name, text in _sources().items() if not name.startswith(own) and _names(target).search(text)]
    assert len(naming) <= MOST, f"{target.name} is named by {naming}: ask its object instead"
    assert any(_names(target).search(text) for name, text in _sources().items() if name.startswith(own))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_has_its_folder(target: Target) -> None:
    folder = ROOT / "builder" / "targets" / target.folder
    assert {"__init__.py", "target.py", "stage.py", "info.py"} <= {path.name for path in folder.iterdir()}


def test_nothing_but_the_registry_lists_the_targets() -> None:
    lists = [
        name
        for name, text in _sources().items()
        if sum(_names(target).search(text) is not None for target in TARGETS.values()) >= 3
    ]
    assert lists == []
