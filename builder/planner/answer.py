"""The plan's answer in a few lines: does it fit, in which split, how many requests, how fast, at what cost.

Policy: what a person asked for stands first and together; how it comes about is in the sections. The figures are those
of the batch with most requests a second under the recipe's service levels, or of all running requests where there are
none (or none is met). A plan that does not fit has no speed and no price.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from builder.planner.capacity import capacity
from builder.planner.cost import costs
from builder.planner.sections.cost import money, rates_of
from builder.planner.sections.speed import ms, span
from builder.planner.sizes import size
from builder.planner.speed.facts import load_of, served_at
from builder.planner.speed.levels import asked_levels, best_level
from builder.planner.speed.serving import TYPICAL
from builder.planner.types import Facts

#: label and text
Row = tuple[str, str]


def answer(facts: Facts, *, fits: bool) -> tuple[list[Row], dict[str, Any]]:
    """The lines, and the same for ``--json``."""
    tightest = min(facts.memory, key=lambda plan: plan.free)
    replicas, parallel = facts.replicas, facts.parallel
    spread = f"{replicas} replica{'s' if replicas > 1 else ''} of {parallel}"
    room = f"{size(tightest.total)} of {size(tightest.capacity)} a GPU"
    if not fits:
        lacks = (
            f", {size(-tightest.free)} too much" if tightest.free < 0 else ", and no request of the load fits the pool"
        )
        return [("fits", f"no: {room}{lacks}"), ("closest split", spread)], {"fits": False}
    found = capacity(facts.model, facts.memory, facts.workload, facts.serving)
    level, asked = best_level(facts, TYPICAL), asked_levels(facts)
    batch = found.running if level is None else level.batch
    served = served_at(facts, load_of(facts), [batch])
    first = served.ttft[:, 0] + served.gap[:, 0]  # the step that runs when the request comes
    price, utilization = facts.options.get("price"), facts.options.get("utilization") or 1.0
    prices = [costs(rates_of(facts, served, index), price, utilization) for index in range(3)]
    unit = prices[1].unit
    levels = ", ".join(f"{name} {value * 1e3:,.4g} ms" for name, value in asked.items())
    why = f"the most under {levels}" if batch < found.running else f"{found.binding} binds"
    rows = [
        ("fits", f"yes: {room}, {size(tightest.pool.bytes)} of it KV pool"),
        ("split", f"{spread}: {facts.chosen}"),
        ("requests at once", f"{batch * replicas:,} ({replicas} x {batch:,}; {why})"),
        ("first token", ms(first)),
        ("between tokens", f"{ms(served.itl[:, 0])}, 99th percentile {ms(served.gap[:, 0])}"),
        ("output tokens/s", span(served.output[:, 0] * replicas)),
        (
            "a million output tokens",
            f"{money(prices[1].output, unit)} ({money(prices[2].output, unit)} to {money(prices[0].output, unit)})",
        ),
    ]
    data = {
        "fits": True,
        "split": str(parallel),
        "replicas": replicas,
        "requests": batch * replicas,
        "batch": batch,
        "first_token": _list(first),
        "between_tokens": _list(served.itl[:, 0]),
        "between_tokens_p99": _list(served.gap[:, 0]),
        "output_tokens_per_second": _list(served.output[:, 0] * replicas),
        "output_cost": [cost.output for cost in prices],
        "cost_unit": unit,
        "meets_slo": None if not asked else level is not None,
    }
    return rows, data


def _list(values: Any) -> list[float]:
    return [float(value) for value in np.asarray(values)]
