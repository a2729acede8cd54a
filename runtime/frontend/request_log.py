"""One line of JSON a request: when it came, what it cost, how it ended. No text of prompts or answers is in it.

Policy: off unless the recipe says where to (``serving.request_log``). A request has one line, at its end, whichever end
that is: answered, refused, cancelled, or left by its client. Lines are written by a thread of their own, so that the
stepping thread never waits for a disk; a file that cannot be written any more is said once in the server's log.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from runtime.frontend.server_log import NAME, shown_id
from runtime.request import RequestOutput, RequestTimes
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_lines import open_log, stamped

STDERR = "stderr"
log = logging.getLogger(NAME)


class RequestLog:
    """Where the lines go.

    Args:
        place: ``stderr``, which Triton's own output is, or an absolute path that is appended to.

    Raises:
        ForgeError: TF-RUN-140 the file cannot be opened.
    """

    def __init__(self, place: str) -> None:
        self._file = sys.stderr if place == STDERR else _opened(place)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def follow(self, name: str, told: Callable[[RequestOutput], None]) -> Callable[[RequestOutput], None]:
        """``told``, with a line at the request's end; ``name`` is the client's id."""
        entry = _Entry(self, name)

        def telling(output: RequestOutput) -> None:
            entry.note(output)
            try:
                told(output)
            except Exception:
                entry.leave()
                raise

        return telling

    def refused(self, name: str, code: str) -> None:
        """A request that never ran."""
        self.write({"id": shown_id(name), "finish_reason": "refused", "code": code})

    def write(self, figures: dict[str, Any]) -> None:
        """One line, with the time before it."""
        self._lines.put(stamped(figures))

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits and end the thread."""
        self._lines.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        broken = False
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
                broken = False
            except (OSError, ValueError) as error:
                if not broken:
                    log.error("the request log cannot be written: %s", error)
                broken = True
        if self._file is not sys.stderr:
            self._file.close()


def _opened(place: str) -> TextIO:
    try:
        if not Path(place).is_absolute():
            raise ValueError("the path is not absolute")
        return open_log(Path(place))
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-RUN-140",
            "the request log cannot be opened",
            asked=f"serving.request_log: {place}",
            why=str(error),
            remedies=["name a file in a folder that the server's user may write to", "serving.request_log: stderr"],
        ) from error


class _Entry:
    """What one prompt's line will say; written once."""

    def __init__(self, to: RequestLog, name: str) -> None:
        self._to, self._name = to, name
        self._last: RequestOutput | None = None
        self._tokens: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._done = False

    def note(self, output: RequestOutput) -> None:
        self._last = output
        for sample in output.samples:
            self._tokens[sample.index] = sample.num_tokens
            if sample.finish_reason is not None:
                self._reasons[sample.index] = str(sample.finish_reason)
        if output.finished:
            self._write()

    def leave(self) -> None:
        """The client has gone: nothing more will be said."""
        self._reasons = dict.fromkeys(self._tokens or {0: 0}, "cancelled")
        self._write()

    def _write(self) -> None:
        output = self._last
        if self._done or output is None:
            return
        self._done = True
        reasons = list(dict.fromkeys(self._reasons[index] for index in sorted(self._reasons)))
        tokens = sum(self._tokens.values())
        line: dict[str, Any] = {
            "id": shown_id(self._name or output.request_id),
            "prompt_tokens": output.num_prompt_tokens,
            "cached_tokens": output.num_cached_tokens,
            "output_tokens": tokens,
            **(times_of(output.times, tokens / max(1, len(self._tokens))) if output.times is not None else {}),
            "finish_reason": ",".join(reasons) or ("error" if output.error else None),
            "code": output.error["code"] if output.error else None,
        }
        self._to.write(line)


def times_of(times: RequestTimes, tokens: float) -> dict[str, float | None]:
    """Seconds of queueing, to the first token, between tokens (mean) and in all; None: it did not come to that."""

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - times.arrival, 6)

    between = None
    if times.first_token is not None and times.last_token is not None and tokens > 1:
        between = round((times.last_token - times.first_token) / (tokens - 1), 6)
    end = times.finished if times.finished is not None else times.last_token
    return {
        "queue_s": since(times.first_scheduled),
        "ttft_s": since(times.first_token),
        "itl_mean_s": between,
        "e2e_s": since(end),
    }
