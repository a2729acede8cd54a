"""Latency figures of a load test: what a client sees, as percentiles.

TTFT is the time from sending a request to its first token; ITL (inter-token latency) the time between
two consecutive tokens of one request; both in seconds. Tokens that arrive in one response share its
time. Rates divide by the span from the first request sent to the last response received. Where the engine
speculates, the accepted length is the tokens that a decoding step of a request yields: 1 and the accepted draft
tokens, steps without a draft included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtforge.recipe.schema import Slo

PERCENTILES = (50, 95, 99)
#: what TTFT is made of where the engine tells its times: the sender's own lateness, what is not the engine (tokenizing,
#: the way there and back), waiting for a place, and the prompt's steps with the first token
PARTS = ("sender", "outside", "queue", "prefill")
#: times whose means two runs, and two targets, are compared by (see :func:`means`)
KINDS = ("ttft", "tpot", "e2e")
#: figures that tables show, where they are known
LATENCY_COLUMNS = ("p50", "p95", "p99", "max")


@dataclass
class RequestTiming:
    """One request as its client saw it; times in seconds on one monotonic clock.

    ``drafted`` and ``accepted`` are draft tokens of its answer; None: the engine does not speculate. In the open loop
    ``sent`` is when the request was due, and ``late`` how many seconds after that it went out. ``tokenize`` are
    seconds that submitting took, tokenizing above all, where that is seen. ``parts`` are the seconds of ``ttft`` that
    the engine tells apart (see :data:`PARTS`).
    """

    sent: float
    token_times: list[float] = field(default_factory=list)
    done: float | None = None
    error: str | None = None
    drafted: int | None = None
    accepted: int | None = None
    late: float = 0.0
    tokenize: float | None = None
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.sent

    @property
    def e2e(self) -> float:
        return self.token_times[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first one; None where there is none."""
        after = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / after if after > 0 else None

    @property
    def intervals(self) -> np.ndarray:
        return np.diff(np.asarray(self.token_times, dtype=np.float64))


@dataclass(frozen=True)
class LevelResult:
    """Figures of one concurrency level.

    ``ttft`` and ``itl`` are :func:`percentiles` in seconds; ``goodput`` is requests/s that met the SLO, and
    ``good_share`` their share (both None without an SLO). ``speculation`` is of :func:`drafts`, ``means`` of
    :func:`means` (None in what earlier versions wrote).
    """

    concurrency: int
    requests: int
    errors: int
    seconds: float
    tokens: int
    tokens_per_second: float
    requests_per_second: float
    ttft: dict[str, float]
    itl: dict[str, float]
    goodput: float | None = None
    good_share: float | None = None
    speculation: dict[str, float] | None = None
    means: dict[str, dict[str, float]] | None = None

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self)


def percentiles(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """``p50``, ``p95`` and ``p99`` by linear interpolation, ``max`` and ``samples``; empty when there is nothing.

    A percentile is left out where the values are too few to have one above it: p95 needs 20 values, p99 100.
    """
    count = len(values)
    if count == 0:
        return {}
    known = [p for p in PERCENTILES if count * (100 - p) >= 100 or p == PERCENTILES[0]]
    array = np.asarray(values, dtype=np.float64)
    figures = np.percentile(array, known)
    found = {f"p{p}": float(v) for p, v in zip(known, figures, strict=True)}
    return {**found, "max": float(array.max()), "samples": float(count)}


def tail(figures: Mapping[str, float]) -> float | None:
    """p99, or the largest value where there are too few for it; None where there is none."""
    return figures.get("p99", figures.get("max"))


def meets(timing: RequestTiming, slo: Slo) -> bool:
    """Whether one request met the SLO: its own TTFT and its own slowest token interval."""
    if timing.error is not None or not timing.token_times:
        return False
    if slo.ttft_p99 is not None and timing.ttft > slo.ttft_p99:
        return False
    intervals = timing.intervals
    return not (slo.itl_p99 is not None and len(intervals) > 0 and float(intervals.max()) > slo.itl_p99)


def drafts(timings: Sequence[RequestTiming]) -> dict[str, float] | None:
    """Draft tokens, accepted ones, their share, and the accepted length; None where no request counted drafts.

    The first token of an answer comes of its prompt's step, which verifies nothing.
    """
    counted = [t for t in timings if t.drafted is not None]
    if not counted:
        return None
    drafted = sum(t.drafted or 0 for t in counted)
    accepted = sum(t.accepted or 0 for t in counted)
    decoded = sum(max(0, len(t.token_times) - 1) for t in counted)
    steps = decoded - accepted
    return {
        "draft_tokens": float(drafted),
        "accepted_tokens": float(accepted),
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "accepted_length": decoded / steps if steps > 0 else 0.0,
    }


def means(timings: Sequence[RequestTiming]) -> dict[str, dict[str, float]]:
    """``mean``, ``sd`` and ``n`` over requests of TTFT, TPOT and E2E in seconds: what two runs are compared by."""
    kinds: dict[str, list[float]] = {
        "ttft": [t.ttft for t in timings],
        "tpot": [tpot for t in timings if (tpot := t.tpot) is not None],
        "e2e": [t.e2e for t in timings],
    }
    return {
        kind: {
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "n": float(len(values)),
        }
        for kind, values in kinds.items()
        if values
    }


def summarize(concurrency: int, timings: Sequence[RequestTiming], slo: Slo | None = None) -> LevelResult:
    """Figures of one level from its requests; failed requests count as errors and as SLO misses."""
    finished = [t for t in timings if t.error is None and t.token_times]
    begin = min((t.sent for t in timings), default=0.0)
    end = max((t.done if t.done is not None else t.sent for t in timings), default=0.0)
    seconds = max(end - begin, 1e-9)
    tokens = sum(len(t.token_times) for t in finished)
    intervals = np.concatenate([t.intervals for t in finished]) if finished else np.empty(0)
    good = sum(meets(t, slo) for t in timings) if slo is not None else None
    return LevelResult(
        concurrency=concurrency,
        requests=len(timings),
        errors=len(timings) - len(finished),
        seconds=seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        requests_per_second=len(finished) / seconds,
        ttft=percentiles([t.ttft for t in finished]),
        itl=percentiles(intervals),
        goodput=None if good is None else good / seconds,
        good_share=None if good is None else good / max(1, len(timings)),
        speculation=drafts(finished),
        means=means(finished),
    )
