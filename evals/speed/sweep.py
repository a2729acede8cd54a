"""A concurrency sweep's result: table, plot with the knee marked, SLO gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evals.gates import at_most
from evals.report import Plot, Series, Table
from evals.speed.latency import LATENCY_COLUMNS, LevelResult, tail
from evals.statistics import Interval
from trtforge.ground.knee import knee_index
from trtforge.recipe.schema import Slo
from trtforge.store.artifact import GateResult


@dataclass(frozen=True)
class Sweep:
    """Levels measured one after the other against one target (``server`` or ``in-process``)."""

    target: str
    levels: tuple[LevelResult, ...]

    @property
    def knee(self) -> LevelResult | None:
        """The level at the bend of the throughput–latency curve, if it bends."""
        index = knee_index(
            [tail(level.itl) or 0.0 for level in self.levels], [level.tokens_per_second for level in self.levels]
        )
        return None if index is None else self.levels[index]

    def to_json(self) -> dict[str, Any]:
        knee = self.knee
        return {
            "target": self.target,
            "levels": [level.to_json() for level in self.levels],
            "knee_concurrency": None if knee is None else knee.concurrency,
        }


def _ms(figures: dict[str, float], key: str) -> str:
    return f"{figures[key] * 1e3:.1f}" if key in figures else "–"


#: heading and form of what :attr:`LevelResult.speculation` holds, for tables
DRAFT_COLUMNS: Mapping[str, tuple[str, str]] = {
    "draft_tokens": ("drafted", ".0f"),
    "accepted_tokens": ("accepted", ".0f"),
    "accepted_length": ("accepted length", ".2f"),
}


def draft_cells(figures: Mapping[str, float] | None, nothing: str = "–") -> list[str]:
    """A level's figures of speculation as :data:`DRAFT_COLUMNS` has them."""
    return [nothing if figures is None else format(figures[key], shape) for key, (_, shape) in DRAFT_COLUMNS.items()]


def sweep_table(sweep: Sweep) -> Table:
    """Rows a level: throughput, TTFT and ITL percentiles in milliseconds, errors, goodput, drafts if there are any."""
    speculates = any(level.speculation is not None for level in sweep.levels)
    columns = (
        "concurrency",
        "tokens/s",
        "requests/s",
        *(f"{kind} {name} (ms)" for kind in ("TTFT", "ITL") for name in LATENCY_COLUMNS),
        "errors",
        "goodput (req/s)",
        *((heading for heading, _ in DRAFT_COLUMNS.values()) if speculates else ()),
    )
    rows = tuple(
        (
            str(level.concurrency),
            f"{level.tokens_per_second:.1f}",
            f"{level.requests_per_second:.2f}",
            *(_ms(figures, name) for figures in (level.ttft, level.itl) for name in LATENCY_COLUMNS),
            str(level.errors),
            "–" if level.goodput is None else f"{level.goodput:.2f}",
            *(draft_cells(level.speculation) if speculates else ()),
        )
        for level in sweep.levels
    )
    return Table(columns, rows, sweep.target)


def sweep_plot(sweeps: Sequence[Sweep]) -> Plot:
    """Throughput over p99 inter-token latency, a line a target, the knee marked."""
    series = []
    marks = []
    for sweep in sweeps:
        latency = tuple((tail(level.itl) or 0.0) * 1e3 for level in sweep.levels)
        series.append(
            Series(
                sweep.target,
                latency,
                tuple(level.tokens_per_second for level in sweep.levels),
                labels=tuple(str(level.concurrency) for level in sweep.levels),
            )
        )
        knee = sweep.knee
        if knee is not None:
            marks.append(((tail(knee.itl) or 0.0) * 1e3, f"knee ({sweep.target}): {knee.concurrency}"))
    return Plot(
        "Throughput against latency (labels: concurrency)",
        "inter-token latency p99 (ms)",
        "tokens/s",
        tuple(series),
        marks=tuple(marks),
    )


def slo_gates(sweep: Sweep, slo: Slo | None) -> list[GateResult]:
    """The SLO at the lowest concurrency measured, and no failed request at any level.

    A sweep goes past saturation on purpose, so the latency limits bind at the lowest level only; the
    highest level that still meets them is reported as goodput.
    """
    errors = float(sum(level.errors for level in sweep.levels))
    gates = [at_most("failed_requests", Interval(errors, errors, errors), 0.0)]
    if slo is None or not sweep.levels:
        return gates
    lowest = min(sweep.levels, key=lambda level: level.concurrency)
    for name, figures, limit in (
        ("ttft_p99", lowest.ttft, slo.ttft_p99),
        ("itl_p99", lowest.itl, slo.itl_p99),
    ):
        if limit is not None:
            found = tail(figures)
            value = float("inf") if found is None else found
            gate = at_most(f"{name}@{lowest.concurrency}", Interval(value, value, value), limit, " s")
            if found is not None and "p99" not in figures:
                few = f"; the largest of {figures['samples']:.0f} values, which are too few for a p99"
                gate = replace(gate, detail=gate.detail + few)
            gates.append(gate)
    return gates
