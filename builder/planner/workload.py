"""Length distributions of requests: one length, a histogram, or a trace of real requests.

:mod:`trtforge.ground.request_trace` reads the trace; its timestamps give the arrival rate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from builder.planner.types import Length, Workload, bad_input
from trtforge.ground.request_trace import JSON_LINE, MOST_TOKENS, read_trace

_HISTOGRAM = re.compile(r"\s*(\d{1,9})\+(\d{1,9})(?::(\d{1,12}(?:\.\d{1,9})?))?\s*")
#: beyond these a figure is a slip of the hand
LEAST_RATE, MOST_RATE = 1e-6, 1e9


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
        remedies = ["--lengths ISL+OSL:WEIGHT,… with weights over 0, for example 512+128:3,4096+512:1"]
        raise _bad(
            "a histogram needs rows with positive weights", "--lengths", remedies, rows=len(table), total=str(total)
        )
    lengths = tuple(Length(isl, osl, weight / total) for isl, osl, weight in table if weight > 0)
    return _checked(Workload("histogram", lengths, shared_prefix, rate))


def trace(path: Path, *, shared_prefix: int = 0, rate: float | None = None) -> Workload:
    """The lengths of a trace file (see the module's text); equal lengths are counted together.

    Raises:
        ForgeError: ``TF-PLN-006`` a line that does not parse, with its number; ``TF-PLN-005`` no file, an empty trace.
    """
    counts: Counter[tuple[int, int]] = Counter()
    times: list[float] = []
    if not path.is_file():
        raise _bad(f"the trace {path} is no file", f"--trace {path}", ["--trace with a file of one request a line"])
    try:
        for request in read_trace(path, f"--trace {path}"):
            counts[request.isl, request.osl] += 1
            if request.timestamp is not None:
                times.append(request.timestamp)
    except OSError as error:
        raise _bad(f"the trace cannot be read: {error}", f"--trace {path}", ["a file that can be read"]) from error
    if not counts:
        raise _bad("the trace holds no request", f"--trace {path}", [f"lines such as {JSON_LINE} or 512,128"])
    total = counts.total()
    lengths = tuple(Length(isl, osl, count / total) for (isl, osl), count in sorted(counts.items()))
    seconds = (max(times) - min(times)) / 1000 if len(times) > 1 else 0.0
    arrivals = (len(times) - 1) / seconds if seconds > 0 else None
    if rate is None and arrivals is not None and not LEAST_RATE <= arrivals <= MOST_RATE:
        raise _bad(
            f"the timestamps of {len(times):,} requests span {seconds:.3g} s: {arrivals:.3g} requests/s is no rate",
            f"--trace {path}",
            ["timestamps in milliseconds", "--rate with requests a second: it wins over timestamps"],
        )
    return _checked(Workload("trace", lengths, shared_prefix, rate if rate is not None else arrivals, str(path)))


def parse_lengths(text: str) -> list[tuple[int, int, float]]:
    """Rows of a histogram from ``512+128:3,4096+512:1`` (prompt + answer : weight; the weight may be left out).

    Raises:
        ForgeError: ``TF-PLN-005`` a part that does not parse.
    """
    rows = []
    for part in text.split(","):
        found = _HISTOGRAM.fullmatch(part)
        if found is None:
            remedies = ["--lengths ISL+OSL:WEIGHT,…, for example 512+128:3,4096+512:1 (the weight may be left out)"]
            if "\0" not in text and len(text) < 1024 and Path(text).is_file():
                remedies.insert(0, f"--trace {text} reads a file")
            raise _bad(f"{part.strip()[:80]!r} is no length of a histogram", f"--lengths {text[:200]}", remedies)
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
    shortest = min(item.isl for item in workload.lengths)
    for item in workload.lengths:
        if not (1 <= item.isl <= MOST_TOKENS and 1 <= item.osl <= MOST_TOKENS):
            given = f"{str(item.isl)[:24]} and {str(item.osl)[:24]}"
            raise _bad(
                f"lengths must lie between 1 and {MOST_TOKENS:,}, not {given}",
                f"lengths of {given}",
                ["--isl and --osl of at least 1 token each"],
            )
    prefix = workload.shared_prefix
    if not 0 <= prefix <= shortest:
        raise _bad(
            f"the shared prefix of {prefix:,} tokens is "
            + ("negative" if prefix < 0 else f"longer than a prompt of {shortest:,}"),
            f"--shared-prefix {prefix}",
            [f"--shared-prefix of 0 to {shortest} tokens: it is part of every prompt"],
            shared_prefix=prefix,
            isl=shortest,
        )
    if workload.rate is not None and not LEAST_RATE <= workload.rate <= MOST_RATE:
        raise _bad(
            f"the arrival rate must lie between {LEAST_RATE:g} and {MOST_RATE:g} requests/s, not {workload.rate:g}",
            f"--rate {workload.rate:g}",
            ["--rate with requests a second, for example 12.5"],
        )
    return workload


def _bad(message: str, asked: str, remedies: list[str], **numbers: Any) -> Exception:
    return bad_input(
        "TF-PLN-005",
        message,
        asked=asked,
        why="Capacity follows from the lengths and the rate of the requests.",
        remedies=remedies,
        **numbers,
    )
