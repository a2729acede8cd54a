"""All that a load test measured, as ``bench.json`` and reports hold it: closed loop, open loop, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evals.report import Section, Table
from evals.speed.latency import KINDS, PARTS, LevelResult
from evals.speed.line import Line, fit
from evals.speed.open_figures import OpenLevel
from evals.speed.open_sweep import OpenSweep, open_gates
from evals.speed.schedule import Traced
from evals.speed.sweep import Sweep, slo_gates, sweep_plot, sweep_table
from evals.speed.tax import service_tax
from trtforge.ground.hashing import hash_json
from trtforge.recipe.schema_bench import Bench, Slo
from trtforge.store.artifact import GateResult

#: columns of a level that arrived by itself
OPEN_COLUMNS = (
    "arrivals", "offered /s", "achieved /s", "tokens/s", "TTFT mean (ms)", "TTFT highest (ms)", "TPOT mean (ms)",
    "ITL highest (ms)", "E2E mean (ms)", "E2E highest (ms)", "good", "goodput /s", "errors", "sender",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Sweeps of one or two targets. ``identity`` is what two runs must share to be compared."""

    sweeps: tuple[Sweep, ...]
    opened: tuple[OpenSweep, ...] = ()
    identity: Mapping[str, Any] | None = None
    slo: Slo | None = None

    @property
    def lines(self) -> dict[str, Line]:
        """The line through the closed loop's levels, by target, where there are enough."""
        found = {sweep.target: fit(sweep.levels, self.slo) for sweep in self.sweeps}
        return {target: line for target, line in found.items() if line is not None}

    def to_json(self) -> dict[str, Any]:
        """``sweeps``, ``open``, ``line``, ``service_tax``, ``run`` and ``slo`` of bench.json."""
        return {
            "sweeps": [sweep.to_json() for sweep in self.sweeps],
            "open": [sweep.to_json() for sweep in self.opened],
            "line": {target: line.to_json() for target, line in self.lines.items()},
            "service_tax": service_tax(self.sweeps, self.opened),
            "run": None if self.identity is None else dict(self.identity),
            "slo": None if self.slo is None else self.slo.model_dump(mode="json", exclude_none=True),
        }

    @classmethod
    def of_json(cls, figures: Mapping[str, Any]) -> Outcome:
        """The outcome of a ``bench.json``, those of earlier versions too."""
        sweeps = tuple(
            Sweep(entry["target"], tuple(LevelResult(**level) for level in entry["levels"]))
            for entry in figures["sweeps"]
        )
        opened = tuple(OpenSweep.of_json(entry) for entry in figures.get("open") or ())
        slo = figures.get("slo")
        return cls(sweeps, opened, figures.get("run"), None if slo is None else Slo.model_validate(slo))

    def gates(self) -> list[GateResult]:
        """Those of the last target: the server where it was measured."""
        closed = slo_gates(self.sweeps[-1], self.slo) if self.sweeps else []
        return [*closed, *open_gates(self.opened[-1] if self.opened else None, self.slo)]

    def section(self, text: str) -> Section:
        """The report's section: tables a target and the throughput-latency plot."""
        tables = [sweep_table(sweep) for sweep in self.sweeps]
        tables += [open_table(sweep) for sweep in self.opened]
        more = (parts_table(self.opened), line_table(self.lines), tax_table(service_tax(self.sweeps, self.opened)))
        tables += [table for table in more if table.rows]
        return Section("Speed", " ".join([text, *self.words()]), tuple(tables), (sweep_plot(self.sweeps),))

    def words(self) -> list[str]:
        """What has to be said beside the tables: the largest good rate, and senders that were late."""
        said = []
        for sweep in self.opened:
            if sweep.capacity is not None:
                said.append(f"{sweep.target}: {capacity_words(sweep)}.")
            late = [level.label for level in sweep.levels if level.sender_late]
            if late:
                said.append(
                    f"{sweep.target}: the sender was late at {', '.join(late)}; times count from when a request was "
                    "due and hold its lateness."
                )
        return said


def identity_of(
    asked: Bench, prompts: Sequence[str], traced: Traced | None, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """What two runs must share to be compared: prompts, answers' length, arrivals, trace and the machine's class."""
    arrivals = asked.arrivals
    return {
        "prompts_sha256": hash_json(list(prompts)),
        "max_tokens": asked.max_tokens,
        "arrivals": None if arrivals is None else {"process": arrivals.process, "seed": arrivals.seed},
        "trace_sha256": None if traced is None else hash_json([traced.at, traced.isl, traced.osl]),
        "machine": {key: machine[key] for key in ("cpu", "capability", "cpus", "gpus") if key in machine},
    }


def capacity_words(sweep: OpenSweep) -> str:
    """``99 % of the requests are good up to 3.2/s, not at 3.4/s``."""
    found = sweep.capacity
    assert found is not None
    low = (
        "99 % of the requests are good at no rate that was tried"
        if not found.low
        else (f"99 % of the requests are good up to {found.low:.4g}/s")
    )
    high = "" if found.high is None else f", not at {found.high:.4g}/s"
    return low + high + (f" ({found.why})" if found.why else "")


def open_cells(level: OpenLevel) -> list[str]:
    """A level's figures as :data:`OPEN_COLUMNS` has them."""
    good = "–" if level.good_share is None else f"{level.good_share:.1%}"
    late = f"late, by up to {level.lateness['max'] * 1e3:.0f} ms" if level.sender_late else "in time"
    cut = "" if level.requests == level.planned else f" ({level.requests} of {level.planned} sent)"
    return [
        level.label + cut,
        f"{level.offered:.3g}",
        f"{level.achieved:.3g}",
        f"{level.tokens_per_second:.1f}",
        _mean(level.ttft),
        highest(level.ttft),
        _mean(level.tpot),
        highest(level.itl),
        _mean(level.e2e),
        highest(level.e2e),
        good,
        "–" if level.goodput is None else f"{level.goodput:.3g}",
        ", ".join(f"{code}: {count}" for code, count in sorted(level.errors.items())) or "0",
        late,
    ]


def open_table(sweep: OpenSweep) -> Table:
    """A row a rate or trace."""
    rows = tuple(tuple(open_cells(level)) for level in sweep.levels)
    return Table(OPEN_COLUMNS, rows, f"{sweep.target}, requests that arrive by themselves")


def parts_table(opened: Sequence[OpenSweep]) -> Table:
    """What the mean TTFT is made of, a row a level whose engine tells."""
    rows = []
    for sweep in opened:
        for level in sweep.levels:
            if level.parts is not None:
                tokenize = f"{level.parts['tokenize'] * 1e3:.2f}" if "tokenize" in level.parts else "–"
                cells = [f"{level.parts[part] * 1e3:.2f}" for part in PARTS]
                rows.append((sweep.target, level.label, *cells, tokenize))
    columns = ("target", "arrivals", "sender late (ms)", "outside the engine (ms)", "queue (ms)", "prefill (ms)")
    return Table((*columns, "of outside: tokenizing (ms)"), tuple(rows), "what the mean TTFT is made of")


def line_table(lines: Mapping[str, Line]) -> Table:
    """T(B) = a + b · B, a row a target."""
    rows = tuple(
        (
            target,
            f"{line.a * 1e3:.3f}",
            f"{line.b * 1e3:.4f}",
            f"{line.r_squared:.3f}",
            "–" if line.knee is None else f"{line.knee:.1f}",
            "–" if line.largest is None else f"{line.largest}{' (beyond the levels)' if line.beyond else ''}",
        )
        for target, line in lines.items()
    )
    columns = ("target", "a (ms)", "b (ms a request)", "R²", "knee B* = a / b", "largest B inside itl_p99")
    return Table(columns, rows, "time of a step over requests in flight, T(B) = a + b · B")


def tax_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The service tax, a row a load that both targets had."""
    cells = tuple((row["load"], *("–" if row[kind] is None else f"{row[kind]:.1%}" for kind in KINDS)) for row in rows)
    columns = ("load", *(kind.upper() for kind in KINDS))
    return Table(columns, cells, "service tax: (server − in-process) / server of the mean times")


def _mean(figures: Mapping[str, float]) -> str:
    return f"{figures['mean'] * 1e3:.1f}" if "mean" in figures else "–"


def highest(figures: Mapping[str, float]) -> str:
    """The highest percentile that the values support, with its name, else the largest value, in milliseconds."""
    names = [name for name in figures if name.startswith("p")] or ["max"]
    return f"{names[-1]} {figures[names[-1]] * 1e3:.1f}" if names[-1] in figures else "–"
