"""Keep other libraries' prints, warnings, log lines and bars out of a console that shows its own progress.

Policy: only the calling thread is muted, and only outside :class:`Audible` calls; a console that draws
from its own thread goes on drawing.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TextIO, cast

from trtforge.ground.progress import Progress


class _Gate:
    """Stands in for ``sys.stdout``: drops what the muted thread writes while the gate is shut."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.get_ident()
        self.open = False

    def write(self, text: str) -> int:
        if self.open or threading.get_ident() != self._thread:
            return self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Audible:
    """A progress that is heard although the code around it is muted."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, description: str, total: float | None = None) -> None:
        with _opened():
            self._progress.start(description, total)

    def advance(self, amount: float = 1.0) -> None:
        with _opened():
            self._progress.advance(amount)

    def note(self, text: str) -> None:
        with _opened():
            self._progress.note(text)


@contextlib.contextmanager
def _opened() -> Iterator[None]:
    gate: Any = sys.stdout
    if not isinstance(gate, _Gate):
        yield
        return
    before, gate.open = gate.open, True
    try:
        yield
    finally:
        gate.open = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Mute the calling thread's standard output, Python warnings, log lines under errors and transformers' bars."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        gate = cast(TextIO, _Gate(sys.stdout))
        with warnings.catch_warnings(), contextlib.redirect_stdout(gate), _no_bars():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    bars = sys.modules.get("transformers.utils.logging")
    if bars is None or not bars.is_progress_bar_enabled():
        yield
        return
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()
