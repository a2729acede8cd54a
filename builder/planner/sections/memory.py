"""Memory: every term of a GPU's sum, tensor by tensor, and what the host needs."""

from __future__ import annotations

from collections.abc import Sequence

from builder.planner.chart import bar
from builder.planner.host import plan_host
from builder.planner.report import plain
from builder.planner.sizes import size
from builder.planner.types import Facts, MemoryPlan, Section, Table
from builder.planner.weights import TensorGroup, active_parameters, rank_bytes
from trtforge.models.loading import Footprint


def section(facts: Facts) -> Section:
    """The memory section."""
    tightest = min(facts.memory, key=lambda plan: plan.free)
    parameters = facts.model.parameters
    served = sum(group.bytes for group in facts.weights)
    footprint = Footprint.of_model(facts.model)
    host = plan_host(footprint, facts.precision.base, served, prequantized=facts.model.prequantized is not None)
    low, high = tightest.bounds
    verdict = "fits" if tightest.fits and tightest.pool.blocks else "does not fit"
    headline = (
        f"{verdict}: {size(tightest.total)} of {size(tightest.capacity)} on each GPU ({facts.parallel}), "
        f"{size(tightest.pool.bytes)} of it KV pool"
    )
    notes = [bar(tightest), f"range of the sum: {size(low)} to {size(high)}"]
    if tightest.fits and high > tightest.capacity:
        notes.append("with every estimate at its upper bound it would not fit; keep the pool smaller or measure first")
    totals = host.totals()
    stored = facts.model.prequantized is not None
    quantizes = not stored and (facts.recipe is None or facts.recipe.quantize.format != "none")
    work = "quantize and evaluate" if quantizes else "evaluate the reference in float32"
    reference = f"{size(totals['quantize'])} to {work} ({size(totals['quantize_by_layer'])} layer by layer), "
    reference = "" if stored else reference
    notes.append(f"host memory: {reference}about {size(totals['build'])} to build; disk: {size(totals['disk'])}")
    data = {
        "parameters": parameters,
        "active_parameters": active_parameters(facts.model),
        "stages": [_stage(plan) for plan in facts.memory],
        "tensors": [_tensor(group, facts) for group in facts.weights],
        "host": {
            "quantize": plain(host.quantize),
            "quantize_by_layer": plain(host.by_layer),
            "build": plain(host.build),
            "disk": plain(host.disk),
            **totals,
        },
    }
    return Section("memory", "Memory", headline, data, tuple(_tables(facts)), tuple(notes))


def _stage(plan: MemoryPlan) -> dict[str, object]:
    return {
        "stage": plan.stage,
        "terms": plain(plan.terms),
        "total": plan.total,
        "low": plan.bounds[0],
        "high": plan.bounds[1],
        "capacity": plan.capacity,
        "free": plan.free,
        "fits": plan.fits,
        "pool": {**plain(plan.pool), "tokens": plan.pool.tokens},
    }


def _tensor(group: TensorGroup, facts: Facts) -> dict[str, object]:
    ranks = [rank_bytes(group, facts.model, facts.parallel, stage) for stage in range(facts.parallel.pp)]
    return {
        "name": group.pattern,
        "shape": list(group.shape),
        "format": group.dtype,
        "bits": group.bits,
        "count": group.count,
        "part": group.part,
        "bytes": group.bytes,
        "bytes_on_rank": ranks,
    }


def _tables(facts: Facts) -> Sequence[Table]:
    tables = []
    for plan in _distinct(facts.memory):
        where = f", stage {plan.stage}" if facts.parallel.pp > 1 else ""
        rows = [(term.name, size(term.bytes), _range(term.low, term.high), term.formula) for term in plan.terms]
        rows.append(("sum", size(plan.total), _range(*plan.bounds), f"{size(plan.free)} stay free"))
        tables.append(Table(f"Memory of one GPU{where}", ("term", "size", "range", "how"), tuple(rows)))
    tensors = [
        (
            group.pattern,
            " x ".join(map(str, group.shape)) or "scalar",
            group.dtype,
            group.count,
            size(group.bytes),
            size(max(rank_bytes(group, facts.model, facts.parallel, stage) for stage in range(facts.parallel.pp))),
        )
        for group in facts.weights
    ]
    columns = ("tensors", "shape", "format", "count", "whole model", "one GPU")
    tables.append(Table("Weights by tensor", columns, tuple(tensors)))
    return tables


def _distinct(plans: Sequence[MemoryPlan]) -> list[MemoryPlan]:
    """Stages with another sum than the one before: middle stages are alike."""
    kept: list[MemoryPlan] = []
    for plan in plans:
        if not kept or [term.bytes for term in plan.terms] != [term.bytes for term in kept[-1].terms]:
            kept.append(plan)
    return kept


def _range(low: int, high: int) -> str:
    return "exact" if low == high else f"{size(low)} – {size(high)}"
