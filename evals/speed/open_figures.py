"""Figures of requests that arrived by themselves.

Times count from when a request was due. TPOT is the time for each token after a request's first one. A percentile p is
given only where at least ten requests lie beyond it: n >= 10 / (1 - p), so a p99 needs 1,000.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evals.speed.latency import PARTS, RequestTiming, drafts, means, meets
from evals.speed.open_loop import OpenRun
from trtforge.recipe.schema_bench import Slo

PERCENTILES = (50, 90, 95, 99, 99.9)
#: values that must lie beyond a percentile
_BEYOND = 10
#: a request is late when it goes out this many seconds after it was due
LATE_SECONDS = 0.010
#: a sender is late when more than this share of its requests is
LATE_SHARE = 0.01
_CODE = re.compile(r"TF-[A-Z0-9]+-[0-9]+")
_STATUS = re.compile(r"StatusCode\.[A-Z_]+")


@dataclass(frozen=True)
class OpenLevel:
    """One rate, or one trace.

    Attributes:
        source: ``rate`` or ``trace``.
        offered: requests a second that were due.
        achieved: answers a second, from the beginning to the last one.
        seconds: from the beginning to the last answer.
        requests, planned: sent, and due (fewer are sent once a search has its verdict).
        errors: failed requests by code.
        ttft, tpot, itl, e2e: figures of :func:`figures`, in seconds; ``itl`` over tokens, the others over requests.
        good_share, goodput: requests inside the SLO, of all and a second; None without one.
        lateness: seconds that requests went out after they were due, ``share`` of them over 10 ms.
        sender_late: the times hold the sender's own lateness to a part that matters.
        parts: mean seconds of TTFT by part (see :func:`part_means`), where the engine tells.
        means: what two runs are compared by.
    """

    source: str
    offered: float
    achieved: float
    seconds: float
    requests: int
    planned: int
    tokens: int
    tokens_per_second: float
    errors: dict[str, int]
    ttft: dict[str, float]
    tpot: dict[str, float]
    itl: dict[str, float]
    e2e: dict[str, float]
    lateness: dict[str, float]
    sender_late: bool
    means: dict[str, dict[str, float]]
    parts: dict[str, float] | None = None
    good_share: float | None = None
    goodput: float | None = None
    speculation: dict[str, float] | None = None

    @property
    def label(self) -> str:
        return "trace" if self.source == "trace" else f"{self.offered:.3g}/s"

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """``mean``, ``max``, ``samples`` and the percentiles that so many values support; empty when there is none."""
    count = len(values)
    if count == 0:
        return {}
    array = np.asarray(values, dtype=np.float64)
    # in tenths of a percent, because 1 - 0.9 is not 0.1
    known = [p for p in PERCENTILES if count * (1000 - round(p * 10)) >= _BEYOND * 1000]
    found = {f"p{p:g}": float(value) for p, value in zip(known, np.percentile(array, known), strict=True)}
    return {"mean": float(array.mean()), **found, "max": float(array.max()), "samples": float(count)}


def error_code(text: str) -> str:
    """What an error is counted under: our code, gRPC's status, or ``other``."""
    found = _CODE.search(text) or _STATUS.search(text)
    return found.group(0) if found else "other"


def summarize_open(run: OpenRun, slo: Slo | None, *, source: str = "rate", offered: float | None = None) -> OpenLevel:
    """Figures of a run that sent at least one request; failed requests miss the SLO.

    Args:
        offered: the rate that was asked for; None: as many as were sent in the time that they were due in.
    """
    timings = run.timings
    finished: list[RequestTiming] = []
    failed: list[RequestTiming] = []
    for t in timings:
        (finished if t.error is None and t.token_times else failed).append(t)
    begin = timings[-1].sent - run.span
    seconds = max(max(t.done if t.done is not None else t.sent for t in timings) - begin, 1e-9)
    tokens = sum(len(t.token_times) for t in finished)
    late = np.array([t.late for t in timings])
    share = float(np.mean(late > LATE_SECONDS))
    limited = slo is not None and (slo.ttft_p99 is not None or slo.itl_p99 is not None)
    good = sum(meets(t, slo) for t in timings) if slo is not None and limited else None
    return OpenLevel(
        source=source,
        offered=offered if offered is not None else len(timings) / max(run.span, 1e-9),
        achieved=len(finished) / seconds,
        seconds=seconds,
        requests=len(timings),
        planned=run.planned,
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        errors=dict(Counter(error_code(t.error or "no tokens") for t in failed)),
        ttft=figures([t.ttft for t in finished]),
        tpot=figures([tpot for t in finished if (tpot := t.tpot) is not None]),
        itl=figures(np.concatenate([t.intervals for t in finished]) if finished else ()),
        e2e=figures([t.e2e for t in finished]),
        lateness={**figures(late), "share": share},
        sender_late=share > LATE_SHARE,
        means=means(finished),
        parts=part_means(finished),
        good_share=None if good is None else good / len(timings),
        goodput=None if good is None else good / seconds,
        speculation=drafts(finished),
    )


def part_means(timings: Sequence[RequestTiming]) -> dict[str, float] | None:
    """Mean seconds of TTFT by :data:`PARTS` over the ``samples`` requests whose engine told them; None: none did.

    ``tokenize`` is what of ``outside`` was spent on it, where the sender sees that.
    """
    told = [t for t in timings if t.parts]
    if not told:
        return None
    found = {name: float(np.mean([t.parts.get(name, 0.0) for t in told])) for name in PARTS}
    seen = [t.tokenize for t in told if t.tokenize is not None]
    within = {"tokenize": float(np.mean(seen))} if seen else {}
    return {**found, **within, "samples": float(len(told))}


def split_ttft(timing: RequestTiming, arrival: float, scheduled: float, first: float) -> None:
    """The parts of one request's TTFT from its engine's own times, in seconds on any clock, each at most what is left.

    ``outside`` is what the engine did not see: tokenizing, the way there and back, and the client.
    """
    if not timing.token_times or not 0 < arrival <= scheduled <= first:
        return
    queue, prefill = scheduled - arrival, first - scheduled
    outside = max(0.0, timing.ttft - timing.late - queue - prefill)
    timing.parts.update(sender=timing.late, outside=outside, queue=queue, prefill=prefill)
