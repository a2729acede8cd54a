"""Requests of a trace: lengths of prompt and answer, and when each arrived.

Trace file: one request a line, JSON objects with ``isl`` and ``osl`` (or ``input_length`` and ``output_length``, as
AIPerf and Mooncake traces name them), or two integers separated by comma or blank, under a header that names the
columns or without one; ``#`` starts a comment there. An optional ``timestamp`` is the arrival in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError

_KEYS = (("isl", "osl"), ("input_length", "output_length"), ("input_tokens", "output_tokens"))
#: prompt, answer, timestamp of a line without a header
_PLAIN: tuple[int, int, int | None] = (0, 1, 2)
JSON_LINE = '{"isl": 512, "osl": 128}'
#: beyond these a figure is a slip of the hand
MOST_TOKENS = 10**9
#: milliseconds: a thousand years after 1970
_MOST_TIME = 3.2e13
#: requests of a trace that are read at most; more tell nothing new about lengths
MAX_REQUESTS = 2_000_000


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One line: tokens of prompt and answer, and the arrival in milliseconds where it says so."""

    isl: int
    osl: int
    timestamp: float | None = None


def read_trace(path: Path, asked: str, *, most: int = MAX_REQUESTS) -> Iterator[TracedRequest]:
    """The requests of a file in its order, the first ``most`` of them.

    Args:
        asked: how the user named the file, as refusals repeat it.

    Raises:
        ForgeError: ``TF-PLN-006`` a line that does not parse, with its number.
        OSError: the file cannot be read.
    """
    columns, total = _PLAIN, 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if total >= most:
                break
            try:
                text = _text(raw, number)
                if not text:
                    continue
                if total == 0 and (found := _header(text)) is not None:
                    columns = found
                    continue
                request = _request(text, columns)
            except _Fault as fault:
                raise _line_fault(path, number, fault.text, fault.reason, asked) from fault.__cause__
            total += 1
            yield request


class _Fault(Exception):
    def __init__(self, text: str, reason: str) -> None:
        super().__init__(reason)
        self.text, self.reason = text, reason


def _text(raw: bytes, number: int) -> str:
    """A line without its comment; in a JSON object ``#`` may stand inside a string and starts none."""
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise _Fault(raw[:40].decode("latin-1"), f"it is no UTF-8 text ({error.reason})") from error
    return text if text.startswith("{") else text.split("#", 1)[0].strip()


def _header(text: str) -> tuple[int, int, int | None] | None:
    """Columns of prompt, answer and timestamp that a first line of names gives; None when it is no such line."""
    names = text.replace(",", " ").lower().split()
    pair = next(((a, b) for a, b in _KEYS if a in names and b in names), None)
    if pair is None:
        return None
    return names.index(pair[0]), names.index(pair[1]), names.index("timestamp") if "timestamp" in names else None


def _request(text: str, columns: tuple[int, int, int | None]) -> TracedRequest:
    time: Any = None
    if text.startswith("{"):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _Fault(text, f"it is no JSON object ({error})") from error
        found = next(((row[a], row[b]) for a, b in _KEYS if a in row and b in row), None)
        if found is None:
            raise _Fault(text, "it has no isl and osl")
        isl, osl, time = found[0], found[1], row.get("timestamp")
    else:
        isl, osl, time = _fields(text, columns)
    for name, value in (("isl", isl), ("osl", osl)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
            raise _Fault(text, f"{name} must be a positive integer up to {MOST_TOKENS:,}, not {str(value)[:40]}")
    valid = isinstance(time, (int, float)) and not isinstance(time, bool) and abs(time) <= _MOST_TIME
    if time is not None and not valid:
        raise _Fault(text, f"timestamp must be a number of milliseconds, not {str(time)[:40]}")
    return TracedRequest(isl, osl, None if time is None else float(time))


def _fields(text: str, columns: tuple[int, int, int | None]) -> tuple[int, int, float | None]:
    fields = text.replace(",", " ").split()
    if columns == _PLAIN and len(fields) not in (2, 3):
        raise _Fault(text, f"it has {len(fields)} fields instead of 2")
    first, second, third = columns
    if max(first, second, 0 if columns == _PLAIN else third or 0) >= len(fields):
        raise _Fault(text, f"it has {len(fields)} fields, fewer than the header names")
    stamp = fields[third] if third is not None and third < len(fields) else None
    try:
        return int(fields[first]), int(fields[second]), None if stamp is None else float(stamp)
    except ValueError as error:
        raise _Fault(text, "its fields are no numbers") from error


def _line_fault(path: Path, number: int, text: str, reason: str, asked: str) -> ForgeError:
    return ForgeError(
        "TF-PLN-006",
        f"{path.name}, line {number}: {reason}",
        asked=asked,
        why="Each line is one request: its prompt and answer lengths in tokens.",
        remedies=[f"write line {number} as {JSON_LINE} or as 512,128, in UTF-8"],
        numbers={"line": number, "text": text[:120]},
    )
