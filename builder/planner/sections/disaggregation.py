"""Disaggregation: prefill and decode on GPUs of their own, by three conditions."""

from __future__ import annotations

from builder.planner.capacity import capacity
from builder.planner.disaggregation import advise
from builder.planner.report import plain
from builder.planner.types import Facts, Section, Table


def section(facts: Facts) -> Section | None:
    """The disaggregation section; None when nothing runs."""
    running = capacity(facts.model, facts.memory, facts.workload, facts.serving).running
    if not running:
        return None
    itl = float(facts.options.get("itl", 0.05))
    advice = advise(
        facts.model,
        facts.precision,
        facts.parallel,
        facts.gpu,
        facts.count,
        facts.workload,
        network=facts.network,
        itl=itl,
        in_flight=running,
    )
    failed = [item.name for item in advice.conditions if not item.holds]
    headline = (
        "worth trying: all three conditions hold"
        if advice.disaggregate
        else f"not worth it: {', '.join(failed)} {'does' if len(failed) == 1 else 'do'} not hold"
    )
    rows = tuple((item.name, "holds" if item.holds else "fails", item.why) for item in advice.conditions)
    notes = [
        f"moving the KV cache beats computing it again above {advice.break_even_bandwidth / 1e9:.1f} GB/s"
        + (
            f", and over this network from prompts of {max(round(advice.break_even_tokens), 1):,} tokens on"
            if advice.break_even_tokens is not None
            else "; this network is slower"
        )
    ]
    return Section(
        "disaggregation",
        "Disaggregation",
        headline,
        plain(advice),
        (Table("Conditions", ("condition", "verdict", "why"), rows),),
        tuple(notes),
    )
