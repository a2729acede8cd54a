"""Paths as users write them: what the system cannot even look up is refused, not passed on as a crash."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trtforge.ground.errors import ForgeError


def user_path(text: str | Path, *, code: str, asked: str) -> Path:
    """``text`` with a leading ``~`` or ``~user`` expanded; raises ``code`` when there is no such home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ForgeError(
            code,
            f"{asked}: the home folder of {Path(text).parts[0]} is not known",
            asked=asked,
            why="A path that begins with ~ is relative to a user's home folder.",
            remedies=["write the absolute path", "write ./~… for a folder whose name begins with ~"],
        ) from None


def path_fault(path: Path) -> str | None:
    """Why the system cannot look ``path`` up, whatever lies there; ``None`` when it can."""
    try:
        path.stat()
    except ValueError:
        return "it holds a NUL character"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return f"it or one of its names is too long ({len(os.fsencode(path))} bytes)"
        if error.errno == errno.ELOOP:
            return "its links lead in a circle"
    return None


def real_path(path: Path) -> Path:
    """``path`` without links and dots; links in a circle stay as they are, where ``Path.resolve`` would raise."""
    return Path(os.path.realpath(path))


def resolved_path(path: Path, *, code: str, asked: str) -> Path:
    """``path`` without links and dots; raises ``code`` for a NUL character or links that go round in a circle."""
    try:
        return path.resolve()
    except (ValueError, RuntimeError) as error:
        circle = isinstance(error, RuntimeError)
        raise ForgeError(
            code,
            f"{asked!r} is no path: {'its links lead in a circle' if circle else 'it holds a NUL character'}",
            asked=asked,
            remedies=[
                "replace the link by the file that it should lead to" if circle else "write the file's real name"
            ],
        ) from None
