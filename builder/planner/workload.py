"""Length distributions of requests: one length, a histogram, or a trace of real requests.

Trace file: one request a line, JSON objects with ``isl`` and ``osl`` (or ``input_length`` and ``output_length``, as
AIPerf and Mooncake traces name them), or two integers separated by comma or blank; ``#`` starts a comment and a CSV
header line is skipped. An optional ``timestamp`` (milliseconds) gives the arrival rate.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from builder.planner.types import Length, Workload, bad_input

_KEYS = (("isl", "osl"), ("input_length", "output_length"), ("input_tokens", "output_tokens"))
_HISTOGRAM = re.compile(r"\s*(\d{1,9})\+(\d{1,9})(?::(\d{1,12}(?:\.\d{1,9})?))?\s*")
#: requests of a trace that are read at most; more tell nothing new about lengths
MAX_REQUESTS = 2_000_000


def fixed(isl: int, osl: int, *, shared_prefix: int = 0, rate: float | None = None) -> Workload:
    """Every request has ``isl`` prompt and ``osl`` answer tokens.

    Raises:
        ForgeError: ``TF-PLN-005`` a length is not positive, or the shared prefix is longer than the prompt.
    """
    return _checked(Workload("fixed", (Length(isl, osl, 1.0),), shared_prefix, rate))


def histogram(rows: Iterable[tuple[int, int, float]], *, shared_prefix: int = 0, rate: float | None = None) -> Workload:
    """Lengths with weights: rows of (prompt tokens, answer tokens, weight); weights are normalised.

    Raises:
        ForgeError: ``TF-PLN-005`` no rows, a length or weight that is not positive.
    """
    table = list(rows)
    total = sum(weight for _, _, weight in table)
    if not table or total <= 0 or any(weight < 0 for _, _, weight in table):
        raise _bad("a histogram needs rows with positive weights", "histogram", rows=len(table), total=total)
    lengths = tuple(Length(isl, osl, weight / total) for isl, osl, weight in table if weight > 0)
    return _checked(Workload("histogram", lengths, shared_prefix, rate))


def trace(path: Path, *, shared_prefix: int = 0, rate: float | None = None) -> Workload:
    """The lengths of a trace file (see the module's text); equal lengths are counted together.

    Raises:
        ForgeError: ``TF-PLN-006`` a line that does not parse, with its number; ``TF-PLN-005`` an empty trace.
    """
    counts: Counter[tuple[int, int]] = Counter()
    times: list[float] = []
    total = 0
    if not path.is_file():
        raise _bad("the trace is no file", str(path))
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if total >= MAX_REQUESTS:
                    break
                text = line.split("#", 1)[0].strip()
                if not text or (number == 1 and text[0].isalpha()):
                    continue
                isl, osl, time = _line(text, number, path)
                counts[isl, osl] += 1
                total += 1
                if time is not None:
                    times.append(time)
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"the trace cannot be read: {error}", str(path)) from error
    if not counts:
        raise _bad("the trace holds no request", str(path))
    lengths = tuple(Length(isl, osl, count / total) for (isl, osl), count in sorted(counts.items()))
    seconds = (max(times) - min(times)) / 1000 if len(times) > 1 else 0.0
    found = (len(times) - 1) / seconds if seconds > 0 else None
    return _checked(Workload("trace", lengths, shared_prefix, rate if rate is not None else found, str(path)))


def _line(text: str, number: int, path: Path) -> tuple[int, int, float | None]:
    """One request; refuses with the line's number."""
    time: Any = None
    if text.startswith("{"):
        try:
            row = json.loads(text)
        except ValueError as error:
            raise _line_fault(path, number, text, f"it is no JSON object ({error})") from error
        found = next(((row[a], row[b]) for a, b in _KEYS if a in row and b in row), None)
        if found is None:
            raise _line_fault(path, number, text, "it has no isl and osl")
        isl, osl, time = found[0], found[1], row.get("timestamp")
    else:
        fields = text.replace(",", " ").split()
        if len(fields) not in (2, 3):
            raise _line_fault(path, number, text, f"it has {len(fields)} fields instead of 2")
        try:
            isl, osl = int(fields[0]), int(fields[1])
            time = float(fields[2]) if len(fields) == 3 else None
        except ValueError as error:
            raise _line_fault(path, number, text, "its fields are no numbers") from error
    for name, value in (("isl", isl), ("osl", osl)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _line_fault(path, number, text, f"{name} must be a positive integer, not {value!r}")
    valid = isinstance(time, (int, float)) and not isinstance(time, bool) and time == time
    if time is not None and not valid:
        raise _line_fault(path, number, text, f"timestamp must be a number, not {time!r}")
    return isl, osl, None if time is None else float(time)


def _line_fault(path: Path, number: int, text: str, reason: str) -> Exception:
    return bad_input(
        "TF-PLN-006",
        f"{path.name}, line {number}: {reason}",
        asked=f"--trace {path}",
        why="Each line is one request: its prompt and answer lengths in tokens.",
        remedies=[f'write line {number} as {{"isl": 512, "osl": 128}} or as 512,128'],
        line=number,
        text=text[:120],
    )


def parse_lengths(text: str) -> list[tuple[int, int, float]]:
    """Rows of a histogram from ``512+128:3,4096+512:1`` (prompt + answer : weight; the weight may be left out).

    Raises:
        ForgeError: ``TF-PLN-005`` a part that does not parse.
    """
    rows = []
    for part in text.split(","):
        found = _HISTOGRAM.fullmatch(part)
        if found is None:
            raise _bad(f"{part.strip()!r} is no length of a histogram", f"--lengths {text}")
        rows.append((int(found[1]), int(found[2]), float(found[3] or 1)))
    return rows


def percentile(workload: Workload, share: float) -> int:
    """Tokens (prompt and answer) that ``share`` of the requests do not exceed."""
    tokens = workload.table[0] + workload.table[1]
    order = np.argsort(tokens)
    done = np.cumsum(workload.table[2][order])
    found = min(int(np.searchsorted(done, share - 1e-12)), len(order) - 1)
    return int(tokens[order[found]])


def _checked(workload: Workload) -> Workload:
    for item in workload.lengths:
        if item.isl < 1 or item.osl < 1:
            raise _bad(f"lengths must be positive, not {item.isl} and {item.osl}", f"--isl {item.isl} --osl {item.osl}")
        if workload.shared_prefix < 0 or workload.shared_prefix > item.isl:
            raise _bad(
                f"the shared prefix of {workload.shared_prefix} tokens is longer than a prompt of {item.isl}",
                f"--shared-prefix {workload.shared_prefix}",
                shared_prefix=workload.shared_prefix,
                isl=item.isl,
            )
    if workload.rate is not None and not 0 < workload.rate < float("inf"):
        raise _bad(f"the arrival rate must be positive, not {workload.rate}", f"--rate {workload.rate}")
    return workload


def _bad(message: str, asked: str, **numbers: Any) -> Exception:
    return bad_input(
        "TF-PLN-005",
        message,
        asked=asked,
        why="Capacity follows from the lengths of the requests.",
        remedies=["give --isl and --osl, or a --trace with one request a line", "count a common prefix into --isl"],
        **numbers,
    )
