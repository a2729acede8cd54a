"""A line of JSON a request: who asked when, how it ended, what it came to; never a key, a prompt or an answer."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from trtforge.ground.errors import ForgeError


class RequestLog:
    """The file; None writes nothing. Lines are appended, so that a file may be rotated by copying.

    Raises:
        ForgeError: ``TF-OAI-034`` when it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ForgeError(
                    "TF-OAI-034",
                    "the log of requests cannot be written",
                    asked=str(path),
                    why=str(error),
                    remedies=["name a file in a folder that this user may write"],
                ) from None
            self._file = os.fdopen(handle, "a", encoding="utf-8")

    def write(self, **values: Any) -> None:
        if self._file is not None:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
            self._file.write(json.dumps({name: value for name, value in line.items() if value is not None}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
