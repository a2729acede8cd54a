"""One log file a run: events, notes of the stages, and what libraries log, warn or print.

The file is the place for everything that would bury the console; the newest ``KEEP`` files stay.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

from trtforge.ground.progress import Progress
from trtforge.ground.redaction import redact

KEEP = 50


class _Redacting(logging.Formatter):
    """Records without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def log_file(directory: Path, name: str) -> Path:
    """A new log's path below ``directory``, which is made; all but the newest ``KEEP - 1`` logs there are removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in sorted(directory.glob("*.log"), key=lambda p: p.stat().st_mtime)[: -KEEP + 1]:
        old.unlink(missing_ok=True)
    return directory / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def _opened(path: Path) -> TextIO:
    """``path`` to append lines to, or nowhere when the disk has no room for another file."""
    try:
        return path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    except OSError:
        return Path(os.devnull).open("a", encoding="utf-8")


class RunLog:
    """Appends lines with the time of day; a context manager that closes the file.

    While it is open, records of ``logging`` from INFO on go to the file too. A log that cannot be
    written (a full disk) is given up silently: the run's own error matters more.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = log_file(directory, name)
        self._file = _opened(self.path)
        self._handler = logging.StreamHandler(self._file)
        self._handler.setLevel(logging.INFO)
        self._handler.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
        self._handler.handleError = lambda record: None  # type: ignore[method-assign]

    def line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(f"{time.strftime('%H:%M:%S')} {redact(text)}\n")

    def exception(self, error: BaseException) -> None:
        self.line("".join(traceback.format_exception(error)).rstrip())

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Send what the block prints through ``sys.stdout`` and ``sys.stderr`` to the file.

        For libraries that print; an output module that bound its streams before keeps them.
        """
        stream = _LineStream(self)
        out, err = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = stream
        try:
            yield
        finally:
            stream.finish()
            # somebody below may have replaced the streams in turn; only undo our own replacement
            if sys.stdout is stream:
                sys.stdout = out
            if sys.stderr is stream:
                sys.stderr = err

    def __enter__(self) -> RunLog:
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().removeHandler(self._handler)
        with contextlib.suppress(OSError):
            self._file.close()


class _LineStream(io.TextIOBase):
    """A text stream that logs whole lines; carriage returns of foreign progress bars keep only the last state."""

    encoding = "utf-8"

    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._log = log
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._log.line(f"| {line.rsplit(chr(13), 1)[-1]}")
        if "\r" in self._rest:
            self._rest = self._rest.rsplit("\r", 1)[-1]
        return len(text)

    def finish(self) -> None:
        """Log what was written without a line end."""
        if self._rest.strip():
            self._log.line(f"| {self._rest}")
        self._rest = ""


class LoggedProgress:
    """Progress that also writes steps and notes to the run's log."""

    def __init__(self, inner: Progress, log: RunLog, stage: str) -> None:
        self._inner = inner
        self._log = log
        self._stage = stage

    def start(self, description: str, total: float | None = None) -> None:
        self._log.line(f"{self._stage}: {description}")
        self._inner.start(description, total)

    def advance(self, amount: float = 1.0) -> None:
        self._inner.advance(amount)

    def note(self, text: str) -> None:
        self._log.line(f"{self._stage}: {text}")
        self._inner.note(text)
