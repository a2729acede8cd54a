"""Cost: of a million tokens on this plan, in other precisions, and what it is most sensitive to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder.planner.capacity import capacity
from builder.planner.cost import Costs, Rates, Sensitivity, costs, sensitivity
from builder.planner.memory import plan_memory
from builder.planner.precision import WEIGHT_FORMATS
from builder.planner.speed.facts import engine_of, load_of, running_of, served_at
from builder.planner.speed.serving import Served
from builder.planner.types import Facts, Section, Table, holds
from builder.planner.weights import groups_from_facts, in_precision
from trtforge.tables import architecture_table


def section(facts: Facts) -> Section:
    """The cost section; ``price`` ($ a GPU-hour) and ``utilization`` are options of the plan."""
    price, utilization = facts.options.get("price"), facts.options.get("utilization") or 1.0
    running = running_of(facts)
    served = served_at(facts, load_of(facts), [running])
    variants = [costs(rates_of(facts, served, index), price, utilization) for index in range(3)]
    slow, typical, fast = variants
    rates = rates_of(facts, served, 1)
    rows = sensitivity(rates, price, utilization, _changes(facts, running))
    precisions = _precisions(facts, price, utilization)
    unit = typical.unit
    headline = (
        f"{money(typical.output, unit)} ({money(fast.output, unit)} to {money(slow.output, unit)}) for a million "
        f"output tokens and {money(typical.input, unit)} for a million input tokens at {utilization:.0%} utilization"
    )
    notes = ["input and output cost together are the GPUs' whole cost: prompts pay for what they add to the steps"]
    if price is None:
        notes.append("--price DOLLARS (a GPU-hour) turns GPU-hours into money")
    return Section(
        "cost",
        "Cost",
        headline,
        {
            "price": price,
            "utilization": utilization,
            "slow": slow.to_json(),
            "typical": typical.to_json(),
            "fast": fast.to_json(),
            "precisions": precisions,
            "sensitivity": [vars(row) for row in rows],
        },
        (_cost_table(variants), _precision_table(precisions, unit), _sensitivity_table(rows, unit)),
        tuple(notes),
    )


def rates_of(facts: Facts, served: Served, variant: int) -> Rates:
    """All replicas at the one batch of ``served``; GPUs that hold no replica are paid for too."""
    return Rates(
        facts.count,
        float(served.input[variant, 0]) * facts.replicas,
        float(served.output[variant, 0]) * facts.replicas,
        float(served.input_share[variant, 0]),
    )


def _changes(facts: Facts, running: int) -> list[tuple[str, str, Rates]]:
    """The plan with one thing changed, at typical efficiency; and its slow and fast ends."""
    load = load_of(facts)
    found = []
    base = served_at(facts, load, [running])
    found.append(("efficiency of kernels", "slow end", rates_of(facts, base, 0)))
    found.append(("efficiency of kernels", "fast end", rates_of(facts, base, 2)))
    for factor in (0.25, 0.5):
        batch = max(int(running * factor), 1)
        if batch < running:
            found.append(("requests in flight", str(batch), rates_of(facts, served_at(facts, load, [batch]), 1)))
    for factor in (0.5, 2.0):
        longer = replace(load, isl=max(load.isl * factor, load.cached_prefix + 1))
        found.append(("prompt length", f"{longer.isl:,.0f}", rates_of(facts, served_at(facts, longer, [running]), 1)))
        longer = replace(load, osl=max(load.osl * factor, 1.0))
        found.append(("answer length", f"{longer.osl:,.0f}", rates_of(facts, served_at(facts, longer, [running]), 1)))
    if load.cached_prefix:
        cold = replace(load, cached_prefix=0.0)
        found.append(("prefix cache", "none", rates_of(facts, served_at(facts, cold, [running]), 1)))
    return found


def _precisions(facts: Facts, price: float | None, utilization: float) -> list[dict[str, Any]]:
    """Each format with a kernel on the GPU, in the same split: whether it fits, its batch, rate and cost."""
    row = architecture_table().row(facts.gpu.arch)
    stated = {} if row is None else row.formats
    usable = [name for name, support in stated.items() if support in ("yes", "weight-only") and name in WEIGHT_FORMATS]
    names = list(dict.fromkeys([facts.precision.base, *usable, facts.precision.weights]))
    if facts.model.prequantized is not None:
        names = [facts.precision.weights]
    plain = groups_from_facts(facts.model)
    rows: list[dict[str, Any]] = []
    for name in names:
        same = name == facts.precision.weights
        precision = facts.precision if same else replace(facts.precision, weights=name, group_size=None, mixed=())
        weights = facts.weights if same else in_precision(plain, precision)
        memory = plan_memory(facts.model, weights, precision, facts.parallel, facts.serving, facts.gpu, facts.beside)
        found: dict[str, Any] = {
            "weights": name,
            "plan": same,
            "weight_only": stated.get(name) == "weight-only",
            "fits": False,
        }
        if holds(memory):
            running = capacity(facts.model, memory, facts.workload, facts.serving).running
            if running:
                served = served_at(facts, load_of(facts), [running], engine=engine_of(facts, precision=precision))
                cost = costs(rates_of(facts, served, 1), price, utilization)
                rates = [float(value) * facts.replicas for value in served.output[:, 0]]
                found |= {"fits": True, "running": running, "output_tokens_per_second": rates, **cost.to_json()}
        rows.append(found)
    return rows


def _cost_table(variants: list[Costs]) -> Table:
    unit = variants[0].unit
    rows = [
        (name, *(money(getattr(cost, key), unit) for cost in variants))
        for name, key in (
            ("input tokens", "input"),
            ("output tokens", "output"),
            ("both, as the load mixes them", "blended"),
        )
    ]
    return Table("A million tokens", ("tokens", "slow", "typical", "fast"), tuple(rows))


def _precision_table(rows: list[dict[str, Any]], unit: str) -> Table:
    cells = [
        (
            _said(row),
            row["running"],
            f"{row['output_tokens_per_second'][1]:,.0f}",
            money(row["output_per_million"], unit),
            money(row["blended_per_million"], unit),
        )
        if row["fits"]
        else (_said(row), "does not fit", "", "", "")
        for row in rows
    ]
    columns = ("weights", "requests a replica", "output tokens/s", "million output", "million of both")
    return Table("Precisions in the same split (quality is the gates' matter)", columns, tuple(cells))


def _said(row: dict[str, Any]) -> str:
    """A format's name with what is special about it here."""
    special = [word for word, is_so in (("the plan", row["plan"]), ("weights only", row["weight_only"])) if is_so]
    return row["weights"] + (f" ({', '.join(special)})" if special else "")


def _sensitivity_table(rows: list[Sensitivity], unit: str) -> Table:
    cells = [(row.quantity, row.change, money(row.blended, unit), f"{row.ratio:.2f}") for row in rows]
    return Table("When one thing changes", ("quantity", "to", "million of both", "times the plan"), tuple(cells))


def money(value: float, unit: str) -> str:
    """``$0.42`` or ``0.12 GPU-hours``."""
    text = f"{value:,.2f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"
    return f"${text}" if unit == "$" else f"{text} {unit}"
