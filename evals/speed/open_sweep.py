"""Requests that arrive by themselves against one target: the rates asked for, the trace, and the largest good rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evals.gates import at_most, bound_at_least
from evals.speed.capacity import Capacity, allowed_misses, is_good, largest_good
from evals.speed.open_figures import OpenLevel, summarize_open
from evals.speed.open_loop import Clock, OpenTarget, send_on_schedule
from evals.speed.schedule import Due, due
from evals.statistics import Interval
from trtforge.ground.progress import Progress
from trtforge.recipe.schema_bench import DEFAULT_BUDGET, Bench, Slo
from trtforge.store.artifact import GateResult

#: requests a second at which a search begins where nothing was measured before
_FIRST_RATE = 1.0


@dataclass(frozen=True)
class OpenSweep:
    """What was measured of a target (``server`` or ``in-process``).

    ``capacity`` is of rate ``auto``, or between which of the rates asked for the limit lies; None without limits.
    """

    target: str
    levels: tuple[OpenLevel, ...]
    capacity: Capacity | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "levels": [level.to_json() for level in self.levels],
            "capacity": None if self.capacity is None else self.capacity.to_json(),
        }

    @classmethod
    def of_json(cls, entry: dict[str, Any]) -> OpenSweep:
        """The sweep that :meth:`to_json` wrote."""
        capacity = entry.get("capacity")
        fields = Capacity.__dataclass_fields__
        return cls(
            entry["target"],
            tuple(OpenLevel(**level) for level in entry["levels"]),
            None if capacity is None else Capacity(**{key: capacity[key] for key in fields}),
        )


def measure_open(
    name: str,
    target: OpenTarget,
    asked: Bench,
    prompts: Sequence[str],
    traced: Sequence[Due] | None,
    progress: Progress,
    *,
    start: float | None = None,
    clock: Clock | None = None,
) -> OpenSweep | None:
    """All that ``bench.arrivals`` and ``bench.trace`` ask for; None where they ask for nothing.

    Args:
        traced: the trace's requests; None: there is no trace.
        start: requests a second at which a search begins, for example what the closed loop reached.

    Raises:
        ForgeError: TF-BEN-008 requests did not end.
    """
    levels: list[OpenLevel] = []
    capacity: Capacity | None = None
    if asked.arrivals is not None:
        if isinstance(asked.arrivals.rate, str):
            capacity = _search(target, asked, prompts, progress, start or _FIRST_RATE, levels, clock)
        else:
            for rate in sorted(set(asked.arrivals.rate)):
                schedule = due(asked.arrivals, rate, prompts, asked.max_tokens)
                levels.append(_rate(target, rate, schedule, asked.slo, progress, clock))
            capacity = bracket(levels)
    if traced is not None:
        run = send_on_schedule(target, traced, clock=clock, progress=progress, title="trace")
        levels.append(summarize_open(run, asked.slo, source="trace"))
    return OpenSweep(name, tuple(levels), capacity) if levels else None


def _rate(
    target: OpenTarget,
    rate: float,
    schedule: Sequence[Due],
    slo: Slo | None,
    progress: Progress,
    clock: Clock | None,
    stop_beyond: tuple[Slo, int] | None = None,
) -> OpenLevel:
    """One rate's requests; ``stop_beyond`` is of :func:`send_on_schedule`."""
    title = f"{rate:.3g} requests/s"
    run = send_on_schedule(target, schedule, clock=clock, progress=progress, title=title, stop_beyond=stop_beyond)
    return summarize_open(run, slo, offered=rate)


def _search(
    target: OpenTarget,
    asked: Bench,
    prompts: Sequence[str],
    progress: Progress,
    start: float,
    levels: list[OpenLevel],
    clock: Clock | None,
) -> Capacity:
    """The largest good rate; ``levels`` gets every rate that was tried, by rate."""
    arrivals, slo = asked.arrivals, asked.slo
    assert arrivals is not None and slo is not None
    now: Callable[[], float] = time.perf_counter if clock is None else clock.now
    end = now() + (DEFAULT_BUDGET if arrivals.budget is None else arrivals.budget)

    def probe(rate: float) -> bool:
        schedule = due(arrivals, rate, prompts, asked.max_tokens)
        if not schedule:
            return False
        verdict = slo, allowed_misses(len(schedule))
        level = _rate(target, rate, schedule, slo, progress, clock, stop_beyond=verdict)
        levels.append(level)
        return _good(level)

    found = largest_good(probe, start, lambda: end - now())
    levels.sort(key=lambda level: level.offered)
    return _with_lateness(found, levels)


def _good(level: OpenLevel) -> bool:
    """Whether enough of the requests were good; one that was stopped early has missed."""
    if level.good_share is None or level.requests < level.planned:
        return False
    return is_good(round(level.good_share * level.requests), level.requests)


def bracket(levels: Sequence[OpenLevel]) -> Capacity | None:
    """Between which of some rates the limit lies: the largest good one below the smallest bad one; None: no limits."""
    rates = sorted((level for level in levels if level.source == "rate"), key=lambda level: level.offered)
    if not rates or any(level.good_share is None for level in rates):
        return None
    high = next((level.offered for level in rates if not _good(level)), None)
    low = max(
        (level.offered for level in rates if _good(level) and (high is None or level.offered < high)), default=0.0
    )
    found = Capacity(low, high, False, "only the rates of bench.arrivals.rate were measured")
    return _with_lateness(found, rates)


def _with_lateness(found: Capacity, levels: Sequence[OpenLevel]) -> Capacity:
    deciding = [level for level in levels if level.offered in (found.low, found.high)]
    return replace(found, sender_late=any(level.sender_late for level in deciding))


def open_gates(sweep: OpenSweep | None, slo: Slo | None) -> list[GateResult]:
    """No failed request at the lowest rate and of the trace, and ``bench.slo.min_goodput``.

    Higher rates may be past saturation on purpose; their failures count as misses of the SLO. The gate on goodput holds
    the largest rate that was good (of a trace: its requests a second inside the SLO) against the limit. Where that does
    not decide, it is missed and says why.
    """
    if sweep is None:
        return []
    limit = None if slo is None else slo.min_goodput
    gates = []
    rates = [level for level in sweep.levels if level.source == "rate"]
    for level in [*rates[:1], *(level for level in sweep.levels if level.source == "trace")]:
        errors = float(level.failed)
        gates.append(at_most(f"failed_requests@{level.label}", Interval(errors, errors, errors), 0.0))
    if limit is None:
        return gates
    if sweep.capacity is not None:
        gates.append(_rate_gate(sweep.capacity, limit))
    for level in sweep.levels:
        if level.source == "trace":
            good = level.goodput or 0.0
            gate = bound_at_least("min_goodput@trace", Interval(good, good, good), limit, " requests/s")
            if not gate.passed and level.offered < limit:
                gate = _undecided(gate, f"the trace offers {level.offered:.4g} requests/s, fewer than the limit")
            gates.append(_late(gate) if level.sender_late and not gate.passed else gate)
    return gates


def _rate_gate(found: Capacity, limit: float) -> GateResult:
    gate = bound_at_least("min_goodput", Interval(found.low, found.low, found.low), limit, " requests/s")
    if gate.passed:
        return gate
    if found.high is None or found.high > limit:
        above = "no rate above was bad" if found.high is None else f"the smallest bad rate is {found.high:.4g}"
        gate = _undecided(gate, f"{above}; {found.why or 'the limit lies between the two'}")
    return _late(gate) if found.sender_late else gate


def _undecided(gate: GateResult, why: str) -> GateResult:
    return replace(gate, detail=f"{gate.detail}; not decided: {why}")


def _late(gate: GateResult) -> GateResult:
    return replace(gate, detail=f"{gate.detail}; the sender itself was late, so the figure may be the sender's")
