"""One log file a run, in the store, with everything that the libraries say.

Policy: while a run is logged, Python's logging and warnings, and whatever libraries print to stdout and
stderr, go to the file and not to the terminal: the console keeps its own handles. Native code that
writes to file descriptor 1 is caught too, so that ``--json`` stays one document. Lines are redacted.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trtforge import __version__
from trtforge.console import Console
from trtforge.redaction import redact

_KEEP = 50


def new_log_path(store_root: Path, name: str) -> Path:
    """``<store>/logs/<time>-<name>-<pid>.log``; old logs beyond the newest fifty are removed."""
    folder = store_root / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("*.log"))[:-_KEEP]:
        old.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime())
    return folder / f"{stamp}-{name}-{os.getpid()}.log"


class _LineWriter(io.TextIOBase):
    """A stream that writes whole, redacted, prefixed lines to the log; progress bars' returns become lines."""

    def __init__(self, target: IO[str], name: str) -> None:
        self._target = target
        self._name = name
        self._pending = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self._pending += text.replace("\r\n", "\n")
            *lines, self._pending = self._pending.split("\n")
            for line in lines:
                self._emit(line)
        return len(text)

    def flush(self) -> None:
        return None

    def finish(self) -> None:
        with self._lock:
            if self._pending:
                self._emit(self._pending)
                self._pending = ""

    def _emit(self, line: str) -> None:
        line = line.rpartition("\r")[2] if not line.endswith("\r") else line.rstrip("\r").rpartition("\r")[2]
        if line.strip() and not self._target.closed:
            self._target.write(f"{self._name}: {redact(line)}\n")
            self._target.flush()


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


@contextmanager
def run_log(path: Path, console: Console | None = None) -> Iterator[Path]:
    """Log everything to ``path`` until the block ends; with a console, stdout and stderr go there too.

    The console keeps writing to the terminal; everybody else's output lands in the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(min(level, logging.INFO) if level else logging.INFO)
        logging.captureWarnings(True)
        logging.getLogger("trtforge").info("trtforge %s, python %s, pid %d", __version__, sys.version.split()[0], os.getpid())
        try:
            if console is None:
                yield path
            else:
                with _captured(stream, console):
                    yield path
        finally:
            logging.captureWarnings(False)
            root.removeHandler(handler)
            root.setLevel(level)
            handler.close()


@contextmanager
def _captured(stream: IO[str], console: Console) -> Iterator[None]:
    out, err = _LineWriter(stream, "stdout"), _LineWriter(stream, "stderr")
    before: tuple[Any, Any] = (sys.stdout, sys.stderr)
    terminal = console.out
    kept = _redirect_descriptor(stream)
    if kept is not None:
        # the console's own stream ends in descriptor 1, which now is the log: give it the terminal's copy
        encoding = getattr(terminal, "encoding", None) or "utf-8"
        console.out = os.fdopen(kept, "w", buffering=1, encoding=encoding, errors="replace", closefd=False)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        out.finish()
        err.finish()
        if kept is not None:
            stream.flush()
            console.out.flush()
            console.out = terminal
            os.dup2(kept, 1)
            os.close(kept)


def _redirect_descriptor(stream: IO[str]) -> int | None:
    """Point descriptor 1 at the log; a copy of what it was, or None when stdout is not descriptor 1."""
    try:
        if sys.stdout.fileno() != 1:
            return None
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(stream.fileno(), 1)
    except (OSError, ValueError, AttributeError):
        return None
    return kept


def quiet_libraries() -> None:
    """Keep libraries from drawing their own bars and advice on the terminal of a command that has no log."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
