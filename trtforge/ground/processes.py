"""Processes that we start and read from: how they are ended, and how their end is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[str], patience: float = 10.0) -> Iterator[None]:
    """While we wait for a process that leads a group: whatever ends the waiting ends the whole group.

    It is asked first: who starts compilers or workers of his own ends them when he is asked to end.
    """
    try:
        yield
    except BaseException:
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
        raise


def told_end(code: int | None) -> str:
    """``SIGKILL`` or ``code 1``: how a process ended, of its exit code."""
    names = {int(member): member.name for member in signal.Signals}  # real-time signals between the ends have none
    return names.get(-code, f"signal {-code}") if code is not None and code < 0 else f"code {code}"


def event_of(line: str) -> dict[str, Any] | None:
    """The JSON object with an ``event`` that a worker wrote as a line; None of what is printed beside."""
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
    return None
