"""Disaggregation: prefill and decode on GPUs of their own, by three conditions."""

from __future__ import annotations

import math

from builder.planner.capacity import capacity
from builder.planner.disaggregation import advise
from builder.planner.report import plain
from builder.planner.speed.facts import engine_of, load_of, served_at
from builder.planner.speed.serving import prefill_time
from builder.planner.types import Facts, Section, Table


def section(facts: Facts) -> Section | None:
    """The disaggregation section; None when nothing runs."""
    running = capacity(facts.model, facts.memory, facts.workload, facts.serving).running
    if not running:
        return None
    itl = float(facts.options.get("itl", 0.05))
    engine, load = engine_of(facts), load_of(facts)
    served = served_at(facts, load, [running], engine=engine)
    advice = advise(
        facts.model,
        facts.precision,
        facts.parallel,
        facts.count,
        tokens=load.new_tokens,
        prefill=float(prefill_time(engine, load.new_tokens, cached=load.cached_prefix)[1]),
        share=float(served.input_share[1, 0]),
        network=facts.network,
        itl=itl,
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
            f", and over this network from {_tokens(advice.break_even_tokens)} on"
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


def _tokens(value: float) -> str:
    count = max(math.ceil(value), 1)
    return "the first token of a prompt" if count == 1 else f"prompts of {count:,} tokens"
