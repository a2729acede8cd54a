"""Logs of a line of JSON an entry, as servers append them: how the file is opened, and how a line begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO


def open_log(path: Path) -> TextIO:
    """The file, to be appended to, so that it may be rotated by copying.

    Where it is made here only its user may read it. A pipe that nobody reads is an error, not a wait.

    Raises:
        OSError: it cannot be opened.
        ValueError: its name cannot be one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")


def stamped(values: Mapping[str, Any]) -> str:
    """One line: the time, then ``values``."""
    return json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values})
