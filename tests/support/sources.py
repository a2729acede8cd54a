"""Our own source files, for tests that read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtforge.ground.own_packages import NAMES

ROOT = Path(__file__).resolve().parents[2]
#: the packages of the distribution
PACKAGES = ("trtforge", *sorted(NAMES))


def python_files(*folders: str) -> Iterator[tuple[str, Path]]:
    """(path from the root, file) of every Python file below ``folders``; of the packages where none is given."""
    for folder in folders or PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path
