"""Speculation: tokens a round, the speed-up by batch, and the batches at which it pays."""

from __future__ import annotations

from functools import partial
from typing import Any

from builder.planner.speculation import ASSUMED_ACCEPTANCE, NONE, Speculating, assumed, paying_batches, speedup_at
from builder.planner.speed.facts import draft_engine_of, engine_of, load_of, running_of, speculating_of
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import decode_time
from builder.planner.types import Facts, Section, Table

#: batches up to which it is looked for
_LARGEST = 1024


def section(facts: Facts) -> Section:
    """The speculation section: the recipe's method, or what each method would give."""
    engine, load = engine_of(facts), load_of(facts)
    running = max(round(running_of(facts) / facts.parallel.pp), 1)
    given = speculating_of(facts)
    methods = [given] if given.method != "none" else [assumed(name) for name in ASSUMED_ACCEPTANCE]
    draft = draft_engine_of(facts)
    rows = [_row(engine, load.context, method, running, draft) for method in methods]
    acceptance = "measured" if given.measured else "assumed"
    if given.method == "none":
        paying = [row["method"] for row in rows if row["speedup_running"][0] > 1]
        headline = f"the recipe does not speculate; at {running} requests a step " + (
            f"{', '.join(paying)} would pay even at the low end of the assumed acceptance"
            if paying
            else "no method is sure to pay with its assumed acceptance"
        )
    else:
        low, high = rows[0]["speedup_running"]
        headline = (
            f"{given.method} with {given.verified_tokens - 1} draft tokens: {low:.2f} to {high:.2f} times as fast at "
            f"{running} requests a step ({acceptance} acceptance)"
        )
    return Section(
        "speculation",
        "Speculation",
        headline,
        {"recipe": given.to_json(), "running": running, "methods": rows},
        (_table(rows, running),),
        tuple(_notes(facts, given)),
    )


def _row(engine: Engine, context: float, method: Speculating, running: int, draft: Engine | None) -> dict[str, Any]:
    """One method for the low and the high acceptance, by the typical times."""

    def gain(batch: int, tokens: float) -> float:
        step = float(decode_time(engine, batch, context, NONE)[1])
        round_time = float(decode_time(engine, batch, context, method, draft)[1])
        return speedup_at(tokens, step, round_time, 0.0)

    low, high = method.tokens_a_round
    return {
        **method.to_json(),
        "speedup_one": [gain(1, low), gain(1, high)],
        "speedup_running": [gain(running, low), gain(running, high)],
        "pays_at_batches": [paying_batches(partial(gain, tokens=tokens), _LARGEST) for tokens in (low, high)],
    }


def _table(rows: list[dict[str, Any]], running: int) -> Table:
    def span(values: list[float]) -> str:
        return f"{values[0]:.2f} to {values[1]:.2f}" if values[0] != values[1] else f"{values[0]:.2f}"

    def batches(values: list[list[tuple[int, int]]]) -> str:
        named = [_intervals(value) for value in values]
        return named[0] if named[0] == named[1] else f"{named[0]}; at best {named[1]}"

    cells = [
        (
            row["method"],
            row["verified_tokens"] - 1,
            span(row["acceptance"]),
            span(row["tokens_a_round"]),
            span(row["speedup_one"]),
            span(row["speedup_running"]),
            batches(row["pays_at_batches"]),
        )
        for row in rows
    ]
    columns = (
        "method",
        "drafts",
        "acceptance",
        "tokens a round",
        "speed-up of 1",
        f"of {running}",
        "pays at batches of",
    )
    return Table("Speculation, low to high acceptance", columns, tuple(cells))


def _intervals(found: list[tuple[int, int]]) -> str:
    """``1 to 96``, ``from 12 on``, ``all``, ``none``."""
    parts = []
    for low, high in found:
        if high >= _LARGEST:
            parts.append("all" if low == 1 else f"from {low} on")
        else:
            parts.append(f"{low} to {high}" if high > low else str(low))
    return ", ".join(parts) or "none"


def _notes(facts: Facts, given: Speculating) -> list[str]:
    notes = ["acceptance counts as independent from token to token: an upper bound for a rate of the first draft"]
    if not given.measured:
        notes.append("--acceptance RATE takes a measured one instead of the assumed range")
    if facts.draft is None and given.method not in ("none", "ngram", "lookahead"):
        notes.append(f"the draft's pass is taken as {given.draft_cost:.0%} of a step of the target")
    if facts.parallel.pp > 1:
        notes.append("TensorRT-LLM does not combine speculation with pipeline parallelism")
    return notes
