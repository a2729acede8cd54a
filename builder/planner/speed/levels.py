"""Service levels against one replica: the largest batch that meets them, the fleet that a rate needs, what is missed.

Policy: the figures are Speed's (:mod:`builder.planner.speed.serving`), so the sections of one report and the search
agree. A fleet is sized at the largest batch that meets ``bench.slo``: a tight level means small batches and more
replicas. :data:`HEADROOM` over the mean rate comes on top, because requests do not arrive evenly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from builder.planner.fleet import size_fleet
from builder.planner.speed.facts import load_of, running_of, served_at
from builder.planner.speed.serving import TYPICAL
from builder.planner.types import Facts

#: share over the arrival rate that a fleet, and a plan of the search, can serve
HEADROOM = 0.2
#: batches between 1 and the running requests that are looked at
_BATCHES = 48
SLOW = 0


@dataclass(frozen=True)
class ReplicaLevel:
    """One replica at ``batch`` requests in flight: seconds and requests a second of one variant.

    ``first`` counts the step that already runs when a request comes; ``gap`` is the 99th percentile between steps;
    ``stays`` the seconds that a request is in the replica (Little: ``batch`` = ``requests`` x ``stays``).
    """

    batch: int
    first: float
    gap: float
    requests: float
    stays: float


def levels(facts: Facts, variant: int) -> list[ReplicaLevel]:
    """A replica at batches from 1 to the running requests, for the slow (0), typical (1) or fast (2) figures."""
    running = running_of(facts)
    batches = np.unique(np.round(np.geomspace(1, running, min(running, _BATCHES))))
    load = load_of(facts)
    served = served_at(facts, load, batches)
    return [
        ReplicaLevel(
            int(batch),
            float(served.ttft[variant, index] + served.gap[variant, index]),
            float(served.gap[variant, index]),
            float(served.requests[variant, index]),
            float(batch / served.requests[variant, index]),
        )
        for index, batch in enumerate(batches)
    ]


def asked_levels(facts: Facts) -> dict[str, float]:
    """``ttft_p99`` and ``itl_p99`` of the recipe's ``bench.slo`` in seconds; empty without one."""
    slo = facts.recipe.bench.slo if facts.recipe is not None else None
    pairs = {"ttft_p99": slo.ttft_p99, "itl_p99": slo.itl_p99} if slo else {}
    return {name: float(value) for name, value in pairs.items() if value is not None}


def best_level(facts: Facts, variant: int) -> ReplicaLevel | None:
    """The level with the most requests a second among those that meet ``bench.slo``; None when none does."""
    asked, unlimited = asked_levels(facts), float("inf")
    first, gap = asked.get("ttft_p99", unlimited), asked.get("itl_p99", unlimited)
    meeting = [level for level in levels(facts, variant) if level.first <= first and level.gap <= gap]
    return max(meeting, key=lambda level: level.requests, default=None)


def fleet_for(facts: Facts) -> dict[str, Any] | None:
    """Replicas that the arrival rate needs, at typical and at slow figures; None without a rate.

    ``replicas`` is None where no batch meets the service levels: then no number of replicas helps.
    """
    rate = facts.workload.rate
    if rate is None:
        return None
    have = facts.replicas
    asked = asked_levels(facts)
    under = " under " + ", ".join(f"{name} {value * 1e3:,.4g} ms" for name, value in asked.items()) if asked else ""
    found: dict[str, Any] = {"rate": rate, "headroom": HEADROOM, "have": have, "levels": asked}
    for name, variant in (("typical", TYPICAL), ("slow", SLOW)):
        level = best_level(facts, variant)
        found[name] = None
        if level is not None:
            fleet = size_fleet(rate, level.stays, level.batch, level.batch / level.requests, margin=HEADROOM)
            found[name] = {**asdict(level), **asdict(fleet)}
    typical, slow = found["typical"], found["slow"]
    if typical is None:
        return {
            **found,
            "replicas": None,
            "enough": False,
            "text": f"no batch of this replica meets the service levels{under}",
        }
    needs = typical["replicas"]
    worst = f"{slow['replicas']:,}" if slow else "none would do"
    verdict = "enough" if have >= needs else f"{needs - have:,} too few"
    text = (
        f"{rate:.6g} requests/s stay {typical['stays']:.3g} s each: {typical['in_flight']:,.0f} in flight; a replica "
        f"serves {typical['requests']:.4g} requests/s with {typical['batch']:,} in flight{under}; needs {needs:,} "
        f"replicas with {HEADROOM:.0%} headroom (slow end: {worst}), has {have:,} ({verdict})"
    )
    return {**found, "replicas": needs, "enough": have >= needs, "text": text}


def shortfalls(facts: Facts) -> list[str]:
    """What the plan does not serve although it fits: lengths over the limits, service levels, the arrival rate."""
    found = []
    longest, limit = facts.workload.longest, facts.serving.max_seq_len
    if longest > limit:
        found.append(
            f"requests of up to {longest:,} tokens exceed max_seq_len {limit:,}; "
            f"--set build.limits.max_seq_len={longest} takes them"
        )
    fleet = fleet_for(facts)
    if fleet is not None and not fleet["enough"]:
        found.append(str(fleet["text"]))
    elif fleet is None and best_level(facts, TYPICAL) is None:
        asked = ", ".join(f"{name} {value * 1e3:,.4g} ms" for name, value in asked_levels(facts).items())
        found.append(f"not even one request at a time meets bench.slo ({asked}) at typical figures")
    return found
