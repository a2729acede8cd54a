"""Imports go down the layers of ``docs/concepts.md`` only, late ones and those for types too, and never in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import PACKAGES, ROOT, python_files

#: run by a server and not by trtforge: what a repository's ``model.py`` stands on, copied or imported there
SERVED = ("triton_repo.layouts.ifb_code.", "triton_repo.layouts.llmapi_code.", "triton_repo.layouts.native_model")


def _modules() -> dict[str, Path]:
    found = {}
    for file, path in python_files():
        found[file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")] = path
    return found


MODULES = _modules()


@cache
def _table(head: str) -> tuple[tuple[str, str], ...]:
    """The rows of the table of the section on layering whose first column is called ``head``."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    section = text.split("## Layering", 1)[1].split("\n## ", 1)[0]
    rows = section.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return tuple(re.findall(r"^\| (.+?) \| (.+?) \|$", rows.split("|---|---|", 1)[1], re.MULTILINE))


def _layers() -> list[tuple[str, tuple[str, ...]]]:
    return [(name, tuple(re.findall(r"`([\w.]+)`", modules))) for name, modules in _table("Layer")]


def _neighbours() -> dict[str, set[str]]:
    """Stage package → the stage packages that it may import."""
    return {
        package: set(re.findall(r"`(\w+)`", may))
        for packages, may in _table("Stage package")
        for package in re.findall(r"`(\w+)`", packages)
    }


@cache
def _imports(name: str) -> frozenset[str]:
    """The modules of ours that a module imports anywhere in its text."""

    def asked() -> Iterator[str]:
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (
                    f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module
                    for alias in node.names
                )

    return frozenset(module for module in asked() if module in MODULES and module != name)


@cache
def _layer(module: str) -> int:
    """The layer whose longest entry holds ``module``; the package ``trtforge`` holds its own ``__init__`` only."""
    fitting = [
        (len(entry), number)
        for number, (_, entries) in enumerate(_layers())
        for entry in entries
        if module == entry or (entry != "trtforge" and module.startswith(f"{entry}."))
    ]
    assert fitting, f"{module} stands in no layer"
    return max(fitting)[1]


def test_the_tables_name_every_package() -> None:
    assert {entry.split(".")[0] for _, entries in _layers() for entry in entries} == set(PACKAGES)
    stages = dict(_layers())["stage packages"]
    assert set(_neighbours()) == set(stages) == set(PACKAGES) - {"trtforge"}


@pytest.mark.parametrize("number", range(len(_layers())), ids=[head for head, _ in _layers()])
def test_imports_go_down(number: int) -> None:
    layers = _layers()
    faults = {
        f"{name} imports {other} ({layers[_layer(other)][0]})"
        for name in MODULES
        if _layer(name) == number
        for other in _imports(name)
        if _layer(other) > number
    }
    assert not faults, f"{layers[number][0]} imports what stands above it"


def test_stage_packages_know_few_others() -> None:
    may = _neighbours()
    faults = [
        f"{name}: {other}"
        for name in MODULES
        if name.split(".")[0] in may and not name.startswith((*SERVED, "builder.planner"))
        for other in sorted({module.split(".")[0] for module in _imports(name)} & set(may))
        if other != name.split(".")[0] and other not in may[name.split(".")[0]]
    ]
    assert faults == []


def test_no_circles() -> None:
    """Tarjan's strongly connected components of the modules are one module each."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in _imports(name):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            circle = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for name in MODULES:
        if name not in number:
            visit(name)
    assert circles == []
