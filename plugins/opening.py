"""Opens a shared library of ours and checks that it speaks the ABI that the Python side was written for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.shared_object import open_library


@dataclass(frozen=True)
class Refusal:
    """What is said when a library cannot be used; codes differ by library, the check does not."""

    code: str
    message: str
    remedies: Sequence[str]


def open_shared(path: Path, version_function: str, expected: int, unloadable: Refusal, other: Refusal) -> ctypes.CDLL:
    """The opened library.

    Args:
        version_function: its function that returns the ABI version.
        expected: the version of this package.

    Raises:
        EnvironmentLacks: ``unloadable`` the file is no library, was cut short or lacks the function; ``other`` another
            version.
    """
    try:
        library = open_library(path)
        found = int(getattr(library, version_function)())
    except (OSError, AttributeError) as error:
        raise EnvironmentLacks(
            unloadable.code, unloadable.message, asked=str(path), why=str(error), remedies=unloadable.remedies
        ) from error
    if found != expected:
        raise EnvironmentLacks(
            other.code,
            other.message,
            asked=str(path),
            numbers={"library": found, "package": expected},
            why="The shared library and the Python package come from different versions.",
            remedies=other.remedies,
        )
    return library
