"""How long a drain may still last, told by the launcher to the processes that serve models.

Triton tells a model nothing when it is asked to stop: it takes no more requests, waits for those in flight, and at
its exit timeout ends with their connections. So the launcher leaves a file whose content is the time at which
requests are to be told that they will not be answered. Standard library only: repositories take a copy along.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

#: environment variable with the file's path
NOTICE = "TRTFORGE_DRAIN_NOTICE"


def leave_notice(path: Path, seconds: float) -> None:
    """Say that requests have ``seconds`` from now; whole or not at all, and readable by this user alone."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(repr(time.time() + seconds))
    part.replace(path)


class DrainNotice:
    """Asks whether the drain is over; cheap enough for every few milliseconds.

    Args:
        path: the file; None takes the environment's, and without one a drain never ends from here.
    """

    def __init__(self, path: Path | None = None) -> None:
        named = os.environ.get(NOTICE)
        self._path = path if path is not None else (Path(named) if named else None)

    def over(self) -> bool:
        """Whether the time that requests had is over."""
        if self._path is None:
            return False
        try:
            deadline = float(self._path.read_text())  # again each time: a drain may be cut short
        except (OSError, ValueError):
            return False
        return time.time() >= deadline
