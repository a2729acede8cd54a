"""When requests arrive by themselves, and which: by a random process, at equal gaps, or as a trace says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtforge.ground.errors import ForgeError
from trtforge.ground.request_trace import JSON_LINE, read_trace
from trtforge.recipe.schema_bench import DEFAULT_ARRIVALS, MOST_ARRIVALS, Arrivals, Trace
from trtforge.recipe.sources import file_beside


@dataclass(frozen=True, slots=True)
class Due:
    """One request: seconds after the beginning at which it is due, its prompt and the tokens of its answer."""

    at: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Traced:
    """A trace's requests by arrival: seconds after the first one, tokens of prompt and answer."""

    at: tuple[float, ...]
    isl: tuple[int, ...]
    osl: tuple[int, ...]


def arrival_times(asked: Arrivals, rate: float) -> list[float]:
    """Seconds at which requests are due at ``rate`` requests a second; the first one is due after one gap.

    Random gaps come of the seed alone and scale with the rate: all rates see the same bursts.
    """
    count = asked.requests or DEFAULT_ARRIVALS
    if asked.seconds is not None:
        # enough that a random process passes the end: six deviations over the mean
        mean = rate * asked.seconds
        count = min(MOST_ARRIVALS, int(mean + 6 * mean**0.5) + 10)
    gaps = np.ones(count) if asked.process == "constant" else np.random.default_rng(asked.seed).exponential(size=count)
    times = np.cumsum(gaps) / rate
    if asked.seconds is not None:
        times = times[times <= asked.seconds]
    return [float(value) for value in times]


def due(asked: Arrivals, rate: float, prompts: Sequence[str], max_tokens: int) -> list[Due]:
    """The requests of one rate; prompts take turns."""
    return [Due(at, prompts[i % len(prompts)], max_tokens) for i, at in enumerate(arrival_times(asked, rate))]


def load_trace(asked: Trace, folder: Path) -> Traced:
    """The trace that ``bench.trace`` names below ``folder``, by arrival, at its speed.

    Raises:
        ForgeError: TF-BEN-007 it cannot be read, is empty or has a request without a timestamp; TF-PLN-006 a line that
            does not parse.
    """
    named = f"bench.trace.file: {asked.file}"
    try:
        path = file_beside(asked.file, folder)
        rows = list(read_trace(path, named, most=min(asked.requests or MOST_ARRIVALS, MOST_ARRIVALS)))
        if not rows:
            raise ValueError("it holds no request")
        untimed = sum(row.timestamp is None for row in rows)
        if untimed:
            raise ValueError(f"{untimed} of {len(rows)} requests have no timestamp: nobody knows when they are due")
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-BEN-007",
            "the trace cannot be replayed",
            asked=named,
            numbers={"folder": str(folder.resolve())},
            why=str(error),
            remedies=[
                f'file:PATH beside the recipe, with lines such as {JSON_LINE[:-1]}, "timestamp": 1500}}',
                "bench.arrivals sends at a rate instead",
            ],
        ) from None
    rows.sort(key=lambda row: row.timestamp or 0.0)
    begin = rows[0].timestamp or 0.0
    return Traced(
        tuple(((row.timestamp or 0.0) - begin) / 1000 / asked.speed for row in rows),
        tuple(row.isl for row in rows),
        tuple(row.osl for row in rows),
    )


def traced_due(
    trace: Traced, prompts: Sequence[str], encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> list[Due]:
    """A trace's requests with prompts of its lengths; see :func:`prompt_of`."""
    texts = {
        length: [prompt_of(length, prompts, first, encode, decode) for first in range(min(len(prompts), 4))]
        for length in set(trace.isl)
    }
    return [
        Due(at, texts[isl][i % len(texts[isl])], osl)
        for i, (at, isl, osl) in enumerate(zip(trace.at, trace.isl, trace.osl, strict=True))
    ]


def prompt_of(
    tokens: int,
    prompts: Sequence[str],
    first: int,
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
) -> str:
    """Text of the load's own prompts, from the ``first`` on, ``tokens`` long or as near as the tokenizer allows.

    Cut tokens may merge otherwise when they are read again, so the length is corrected by what it came out at.
    """
    pieces: list[str] = []
    ids: list[int] = []
    at = first
    while len(ids) < tokens + 8:
        pieces += [prompts[at % len(prompts)]] * max(1, (tokens - len(ids)) // 512)
        ids = encode(" ".join(pieces))
        at += 1
    best, wanted = "", tokens
    off = len(ids)
    for _ in range(6):
        text = decode(ids[: max(1, wanted)])
        found = len(encode(text)) - tokens
        if abs(found) < off:
            best, off = text, abs(found)
        if found == 0:
            break
        wanted -= found
    return best
