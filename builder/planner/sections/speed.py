"""Speed: step times by roofline, what a user waits for, and tokens a second by batch; always as ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from builder.planner.speed.facts import engine_of, load_of, running_of, served_at
from builder.planner.speed.levels import asked_levels
from builder.planner.speed.roofline import Engine, StepTime
from builder.planner.speed.serving import Load, Served, knee, prefill_time
from builder.planner.speed.step import Step, decode_part, decode_step, mixed_step, prefill_part, prefill_step
from builder.planner.types import Facts, Section, Table

_CLASS_NAMES = {
    "linear_fp32": "linears, FP32",
    "linear_fp16": "linears, 16 bit",
    "linear_fp8": "linears, FP8",
    "linear_fp4": "linears, FP4",
    "linear_int8": "linears, INT8",
    "linear_weight_only": "linears, weight only",
    "experts": "experts",
    "attention_prefill": "attention of prompts",
    "attention_decode": "attention of decoding",
    "pointwise": "norms and pointwise",
    "communication": "communication",
}


def section(facts: Facts) -> Section:
    """The speed section."""
    engine, load = engine_of(facts), load_of(facts)
    running = running_of(facts)
    batches = batch_levels(running)
    served = served_at(facts, load, batches, engine=engine)
    bend = knee(batches, served, asked_levels(facts))
    idle = prefill_time(engine, load.new_tokens, cached=load.cached_prefix)
    steps = _steps(engine, load, running, facts.serving.max_num_tokens)
    last = len(batches) - 1
    headline = (
        f"{ms(idle)} to the first token on an idle replica; with {running} requests {ms(served.itl[:, last])} between "
        f"tokens and {span(served.output[:, last] * facts.replicas)} output tokens/s from {facts.replicas} "
        f"replica{'s' if facts.replicas > 1 else ''}"
    )
    return Section(
        "speed",
        "Speed",
        headline,
        {
            "first_token_idle": _list(idle),
            "knee": bend,
            "batches": [_level(served, index, batch, facts.replicas) for index, batch in enumerate(batches)],
            "steps": {name: _step_data(time) for name, time in steps.items()},
            "variants": ["slow", "typical", "fast"],
            "ops_from": "graph" if facts.options.get("raw_ops") else "sizes",
            "calibrated": sorted(facts.options["calibration"].ratios) if facts.options.get("calibration") else [],
        },
        (_levels_table(served, batches, facts.replicas), _classes_table(steps), _ops_table(steps["decode"])),
        tuple(_notes(facts, engine, bend, batches)),
    )


def batch_levels(running: int) -> list[int]:
    """1, 2, 4 … and the number of running requests."""
    return sorted({*(2**power for power in range(running.bit_length())), running})


def _steps(engine: Engine, load: Load, running: int, max_num_tokens: int) -> dict[str, StepTime]:
    """The three kinds of step of the plan: one prompt alone, all requests decoding, a chunk beside the others."""
    local = max(running / engine.parallel.pp, 1.0)
    chunk = min(load.new_tokens, max(max_num_tokens - local, 1.0))
    mixed: Step = mixed_step(prefill_part(1, chunk, load.cached_prefix), decode_part(max(local - 1, 0), load.context))
    return {
        "prefill": engine.time(prefill_step(1, chunk, load.cached_prefix)),
        "decode": engine.time(decode_step(local, load.context)),
        "mixed": engine.time(mixed),
    }


def _level(served: Served, index: int, batch: int, replicas: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "first_token": _list(served.ttft[:, index]),
        "between_tokens": _list(served.itl[:, index]),
        "between_tokens_p99": _list(served.gap[:, index]),
        "requests_per_second": _list(served.requests[:, index] * replicas),
        "input_tokens_per_second": _list(served.input[:, index] * replicas),
        "output_tokens_per_second": _list(served.output[:, index] * replicas),
    }


def _step_data(time: StepTime) -> dict[str, Any]:
    return {
        "total": _list(time.total),
        "classes": {name: _list(value) for name, value in time.by_class().items()},
        "ops": [
            {
                "name": op.name,
                "class": op.op_class,
                "flops": float(op.flops),
                "bytes": float(op.bytes),
                "seconds": _list(op.total),
                "bound": op.bound(),
            }
            for op in time.ops
            if float(op.total[1]) > 0
        ],
    }


def _levels_table(served: Served, batches: Sequence[int], replicas: int) -> Table:
    rows = [
        (
            batch,
            ms(served.ttft[:, index]),
            ms(served.itl[:, index]),
            ms(served.gap[:, index]),
            span(served.output[:, index]),
            span(served.output[:, index] * replicas),
        )
        for index, batch in enumerate(batches)
    ]
    columns = ("requests a replica", "first token", "between tokens", "99th percentile", "tokens/s", "all replicas")
    return Table("By requests in flight: typical (fast to slow)", columns, tuple(rows))


def _classes_table(steps: dict[str, StepTime]) -> Table:
    names = [name for name in _CLASS_NAMES if any(name in time.by_class() for time in steps.values())]
    rows = []
    for name in names:
        cells = [_share(time, name) for time in steps.values()]
        if any(cells):
            rows.append((_CLASS_NAMES[name], *cells))
    rows.append(("whole step", *(ms(time.total) for time in steps.values())))
    return Table("Where a step's time goes", ("kind of op", *steps), tuple(rows))


def _share(time: StepTime, name: str) -> str:
    value = float(time.by_class().get(name, np.zeros(3))[1])
    return f"{short(value * 1e3)} ms, {value / float(time.total[1]):.0%}" if value > 0 else ""


def _ops_table(time: StepTime) -> Table:
    rows = [
        (
            op.name,
            f"{float(op.flops) / 1e9:,.1f}",
            f"{float(op.bytes) / 1e6:,.1f}",
            f"{float(op.total[1]) * 1e6:,.0f}",
            op.bound(),
        )
        for op in time.ops
        if float(op.total[1]) > 0
    ]
    return Table(
        "Ops of the decode step, a rank", ("op, all layers", "10^9 operations", "MB", "us", "bound by"), tuple(rows)
    )


def _notes(facts: Facts, engine: Engine, bend: int | None, batches: Sequence[int]) -> list[str]:
    notes = []
    if bend is not None:
        notes.append(
            f"the knee is at {bend} requests: of these batches it yields most tokens/s for the time between tokens "
            "(throughput over delay, Kleinrock)"
        )
    elif len(batches) > 2:
        notes.append("no knee within the limits: throughput still grows with the batch")
    calibration = facts.options.get("calibration")
    if calibration is None:
        notes.append("ranges span the efficiency that kernels reach; --calibration FILE narrows them to measured ones")
    else:
        notes.append(f"calibrated by {calibration.source}: {', '.join(sorted(calibration.ratios))}")
    if facts.model.moe is not None and engine.parallel.ep > 1:
        notes.append("experts are taken as evenly used; a hot expert slows its rank")
    return notes


def ms(values: Any) -> str:
    """``12.3 ms (10.1 to 17.9)`` of (slow, typical, fast) seconds."""
    slow, typical, fast = (float(value) * 1e3 for value in values)
    return f"{short(typical)} ms ({short(fast)} to {short(slow)})"


def short(value: float) -> str:
    """Three digits that count, and every digit before the point: ``1,276``, never ``1.28e+03``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def span(values: Any) -> str:
    """``1,234 (900 to 1,500)`` of (slow, typical, fast) rates."""
    slow, typical, fast = (float(value) for value in values)
    return f"{typical:,.0f} ({slow:,.0f} to {fast:,.0f})"


def _list(values: Any) -> list[float]:
    return [float(value) for value in values]
