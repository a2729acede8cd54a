"""Keeps stdout for the console: whatever else a command prints there goes to stderr.

Policy: ``--json`` promises one document on stdout, and libraries (also native ones, through file descriptor
1) print what they like. While a command runs, ``sys.stdout`` and descriptor 1 lead to stderr, and the console
holds the only way to the real stdout.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO

from trtforge.ground.console import Console


@contextlib.contextmanager
def stdout_guard(console: Console) -> Iterator[None]:
    """Route other people's stdout to stderr until the block ends."""
    terminal, before = console.out, sys.stdout
    kept = _move_descriptor()
    ours: IO[str] | None = None
    if kept is not None:
        encoding = getattr(terminal, "encoding", None) or "utf-8"
        ours = console.out = os.fdopen(kept, "w", buffering=1, encoding=encoding, errors="replace", closefd=False)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = before
        if kept is not None:
            assert ours is not None
            try:
                ours.flush()
            except OSError:
                # what is buffered must not fail again when the stream is collected, or the interpreter ends
                _to_nowhere(kept)
                ours.flush()
            console.out = terminal
            os.dup2(kept, 1)
            os.close(kept)


def _move_descriptor() -> int | None:
    """Point descriptor 1 at stderr; a copy of what it was, or None when stdout is not descriptor 1."""
    try:
        if sys.stdout.fileno() != 1 or sys.stderr.fileno() != 2:
            return None
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError, AttributeError):
        return None
    return kept


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def quiet_libraries() -> None:
    """Keep libraries from drawing their own bars and advice."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
