"""A line of JSON a request: who asked when, how it ended, what it came to; never a key, a prompt or an answer."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_lines import open_log, stamped


class RequestLog:
    """The file; None writes nothing.

    Raises:
        ForgeError: ``TF-OAI-034`` when it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open_log(path)
            except (OSError, ValueError) as error:
                raise ForgeError(
                    "TF-OAI-034",
                    "the log of requests cannot be written",
                    asked=str(path),
                    why=str(error),
                    remedies=["name a file in a folder that this user may write"],
                ) from None

    def write(self, **values: Any) -> None:
        if self._file is not None:
            self._file.write(stamped({name: value for name, value in values.items() if value is not None}) + "\n")
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
