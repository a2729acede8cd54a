"""The shipped tables say the same to PyYAML's loader in C as to the one in Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.sources import PACKAGES, ROOT, python_files
from trtforge.ground.rows import safe_loader

TABLES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.yaml"))

#: what needs the loader in Python: it adds resolvers, resolves single words, or runs inside a server without trtforge
ITS_OWN = {"trtforge/recipe/text.py", "triton_repo/settings_files.py", "triton_repo/layouts/llmapi_code/model.py"}


def test_there_are_tables() -> None:
    assert {path.name for path in TABLES} >= {"formats.yaml", "stack.yaml", "decoders.yaml", "hardware.yaml"}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_both_loaders_read_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert yaml.load(text, Loader=safe_loader()) == yaml.safe_load(text)


def test_the_loader_in_c_is_taken_where_there_is_one() -> None:
    assert safe_loader() is (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)


def test_everything_else_reads_with_it() -> None:
    slow = {name for name, path in python_files() if re.search(r"yaml\.(safe_load|SafeLoader)\b", path.read_text())}
    assert slow - {"trtforge/ground/rows.py"} == ITS_OWN
