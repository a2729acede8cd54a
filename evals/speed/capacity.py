"""The largest rate at which enough of the requests that arrive are good, by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

#: share of the requests that must meet the SLO
GOOD_SHARE = 0.99
#: how near the largest good rate and the smallest bad one must be
TOLERANCE = 0.05
#: rates below this, in requests a second, are not tried
LEAST_RATE = 0.001
_MOST_PROBES = 40


@dataclass(frozen=True)
class Capacity:
    """Between which rates the limit lies, in requests a second.

    Attributes:
        low: the largest rate that was good; 0: none was.
        high: the smallest rate over it that was not; None: none was found.
        settled: they are within the tolerance.
        why: why not, where they are not.
        sender_late: the sender was late at a rate that decides it, so the figure may be the sender's.
    """

    low: float
    high: float | None
    settled: bool
    why: str = ""
    sender_late: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "good_share": GOOD_SHARE, "tolerance": TOLERANCE}


def is_good(good: int, requests: int) -> bool:
    """Whether ``good`` of ``requests`` are enough."""
    return requests > 0 and good >= GOOD_SHARE * requests - 1e-9


def allowed_misses(requests: int) -> int:
    """The most misses with which ``requests`` still are good."""
    return int((1 - GOOD_SHARE) * requests + 1e-9)


def largest_good(probe: Callable[[float], bool], start: float, time_left: Callable[[], float]) -> Capacity:
    """Double from ``start`` until a rate is bad, or halve until one is good, then bisect.

    Args:
        probe: whether a rate is good.
        time_left: seconds of the budget; no probe begins at 0 or below.
    """
    low, high = 0.0, None
    rate = start
    for _ in range(_MOST_PROBES):
        if time_left() <= 0:
            return Capacity(low, high, False, "the budget (bench.arrivals.budget) ended")
        if probe(rate):
            low = max(low, rate)
        else:
            high = rate if high is None else min(high, rate)
        if high is None:
            rate = 2 * low
        elif (high - low) <= TOLERANCE * high:
            return Capacity(low, high, True)
        elif high < LEAST_RATE:
            return Capacity(low, high, False, f"no rate down to {LEAST_RATE:g} requests a second was good")
        else:
            rate = (low + high) / 2
    return Capacity(low, high, False, f"{_MOST_PROBES} rates were tried")
