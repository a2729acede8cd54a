"""How many replicas a load needs, and what batching and placement are worth: queueing by arithmetic.

Sources: Little 1961, https://doi.org/10.1287/opre.9.3.383 (in flight = rate x time); Orca (continuous batching),
https://www.usenix.org/conference/osdi22/presentation/yu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Batching:
    """What a batch of answers costs: ``mean`` and ``last`` completion in seconds, ``wasted`` share of the slots."""

    mean: float
    last: float
    wasted: float


def static_batching(lengths: Sequence[int], step: float) -> Batching:
    """All answers of a batch return with the longest; finished requests keep their slot."""
    longest = max(lengths)
    return Batching(longest * step, longest * step, 1 - sum(lengths) / (longest * len(lengths)))


def continuous_batching(lengths: Sequence[int], step: float) -> Batching:
    """Each answer returns when it is done, and its slot is given away."""
    return Batching(sum(lengths) / len(lengths) * step, max(lengths) * step, 0.0)


def prefill_cost(tokens: int) -> int:
    """Pairs that causal attention scores for a prompt: N (N + 1) / 2."""
    return tokens * (tokens + 1) // 2


def place_in_order(prompts: Sequence[int], gpus: int, each: int) -> list[list[int]]:
    """Prompts in the order of arrival: ``each`` to the first GPU, the next to the second."""
    return [list(prompts[index * each : (index + 1) * each]) for index in range(gpus)]


def place_balanced(prompts: Sequence[int], gpus: int, each: int) -> list[list[int]]:
    """Longest prompt first to the GPU with the least work that has a place left (Graham 1969).

    Raises:
        ForgeError: ``TF-PLN-007`` more prompts than places.
    """
    if len(prompts) > gpus * each:
        raise bad_input(
            "TF-PLN-007",
            f"{len(prompts)} prompts do not fit {gpus} x {each} places",
            asked=f"{len(prompts)} prompts",
            why="Every prompt needs a place in a batch.",
            remedies=["more GPUs or larger batches"],
        )
    groups: list[list[int]] = [[] for _ in range(gpus)]
    for prompt in sorted(prompts, reverse=True):
        room = [group for group in groups if len(group) < each]
        min(room, key=lambda group: sum(map(prefill_cost, group))).append(prompt)
    return groups


def busiest(groups: Sequence[Sequence[int]]) -> int:
    """Prefill work of the GPU that has most of it."""
    return max(sum(map(prefill_cost, group)) for group in groups)
