"""How many replicas a load needs: queueing by arithmetic.

Source: Little 1961, https://doi.org/10.1287/opre.9.3.383 (in flight = rate x time).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from builder.planner.types import bad_input


def in_flight(rate: float, latency: float) -> float:
    """Little's law: requests in the system = arrivals a second x seconds that each stays."""
    return rate * latency


@dataclass(frozen=True)
class Fleet:
    """Replicas for a load. ``replicas`` is the larger need; ``busy`` the share of their throughput that is used."""

    in_flight: float
    by_throughput: int
    by_concurrency: int
    replicas: int
    busy: float


def size_fleet(rate: float, latency: float, batch: int, batch_time: float, *, margin: float = 0.0) -> Fleet:
    """Replicas that finish ``batch`` requests every ``batch_time`` seconds, for ``rate`` requests a second.

    By throughput: rate / (batch / batch_time). By concurrency: rate x latency / batch, because a request occupies
    its place for ``latency``. ``margin`` is the headroom kept for the SLO: 0.2 plans for 1.2 times the load.

    Raises:
        ForgeError: ``TF-PLN-007`` a value that is not positive, or a negative margin.
    """
    if min(rate, latency, batch, batch_time) <= 0 or margin < 0:
        raise bad_input(
            "TF-PLN-007",
            "rate, latency, batch and batch time must be positive and the margin not negative",
            asked=f"rate {rate}, latency {latency}, batch {batch}, batch time {batch_time}, margin {margin}",
            why="Little's law multiplies them.",
            remedies=["give positive numbers"],
        )
    load = rate * (1 + margin)
    each = batch / batch_time
    # a hair below a whole number is that number: 0.1 x 1000 / 100 must not become 2 replicas
    by_throughput = math.ceil(load / each - 1e-9)
    by_concurrency = math.ceil(in_flight(load, latency) / batch - 1e-9)
    replicas = max(by_throughput, by_concurrency, 1)
    return Fleet(in_flight(rate, latency), by_throughput, by_concurrency, replicas, rate / (replicas * each))
