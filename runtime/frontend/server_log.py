"""The runtime's log in the server's: what Python's ``logging`` says goes where Triton writes its own lines."""

from __future__ import annotations

import logging
from typing import Any

NAME = "trtforge.runtime"
#: characters of a client's id that are shown
ID_CHARACTERS = 64


class _ServerLog(logging.Handler):
    """Hands records to Triton's ``Logger``."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.INFO)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno >= logging.ERROR:
            self._logger.log_error(line)
        elif record.levelno >= logging.WARNING:
            self._logger.log_warn(line)
        else:
            self._logger.log_info(line)


def write_to(logger: Any) -> None:
    """Send the runtime's lines from ``INFO`` on to ``triton_python_backend_utils.Logger``; once a process."""
    log = logging.getLogger(NAME)
    if not any(isinstance(handler, _ServerLog) for handler in log.handlers):
        log.addHandler(_ServerLog(logger))
        log.setLevel(logging.INFO)
        log.propagate = False


def shown_id(request_id: str) -> str:
    """A client's id as it stands in logs: printable, on one line, of bounded length."""
    shown = "".join(c if c.isprintable() else "?" for c in request_id[:ID_CHARACTERS])
    return shown + ("…" if len(request_id) > ID_CHARACTERS else "")
