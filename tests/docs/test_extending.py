"""The diffs of docs/extending.md are of files that are there, and each stays within its bar of files by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: section → files that it may ask for
BARS = {
    "Add a family": 2,
    "Add a format": 2,
    "Add a lint rule": 2,
    "Add a preflight rule": 2,
    "Add a target": 4,
    "Add a layout": 5,
    "Add a command": 3,
    "Add a format of tool calls": 3,
}


def _sections() -> dict[str, str]:
    """Heading → text."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _hunks(section: str) -> list[tuple[str, str]]:
    """(file, the lines that stand in it) of every hunk of a section's diffs."""
    found = []
    for diff in re.findall(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        for file, body in re.findall(r"^\+\+\+ b/(.+?)\n(.*?)(?=^--- |\Z)", diff, re.MULTILINE | re.DOTALL):
            for hunk in re.split(r"^@@.*\n", body, flags=re.MULTILINE)[1:]:
                lines = [line[1:] for line in hunk.splitlines() if line[:1] in ("+", " ")]
                found.append((file, "\n".join(lines)))
    return found


HUNKS = [(title, file, lines) for title, section in _sections().items() for file, lines in _hunks(section)]


@pytest.mark.parametrize(("title", "file", "lines"), HUNKS, ids=[f"{title}: {file}" for title, file, _ in HUNKS])
def test_a_diff_is_of_what_is_there(title: str, file: str, lines: str) -> None:
    assert lines.strip()
    assert f"{lines}\n" in (ROOT / file).read_text(encoding="utf-8"), f"{title}: {file} says something else"


@pytest.mark.parametrize("title", BARS)
def test_a_section_asks_for_no_more_files_than_its_bar(title: str) -> None:
    files = {file for other, file, _ in HUNKS if other == title}
    assert 0 < len(files) <= BARS[title]
