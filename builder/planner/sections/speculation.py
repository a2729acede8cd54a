"""Speculation: tokens a round, the speed-up by batch, and the batches at which it pays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from builder.planner.speculation import ASSUMED_ACCEPTANCE, NONE, Speculating, assumed, paying_batches
from builder.planner.speed.facts import draft_engine_of, engine_of, load_of, running_of, speculating_of
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import decode_time, drafting_time
from builder.planner.types import Facts, Section, Table
from trtforge.ground.rounds import best_length, speedup_at

#: batches up to which it is looked for
_LARGEST = 1024
#: draft lengths among which the best is named
_LONGEST = 8


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

    def best(batch: int, acceptance: float) -> int:
        """The chain that would pay best, by the formula that the runtime's policy uses with measured times."""

        def verification(length: int) -> float:
            chain = replace(method, draft_length=length, choices=None, draft_cost=0.0)
            return float(decode_time(engine, batch, context, chain if length else NONE)[1])

        def drafting(length: int) -> float:
            chain = replace(method, draft_length=length, choices=None)
            return float(drafting_time(engine, batch, context, chain, draft)[1])

        return best_length([acceptance] * _LONGEST, verification, drafting)[0]

    low, high = method.tokens_a_round
    return {
        **method.to_json(),
        "speedup_one": [gain(1, low), gain(1, high)],
        "speedup_running": [gain(running, low), gain(running, high)],
        "best_length_one": [best(1, acceptance) for acceptance in method.acceptance],
        "best_length_running": [best(running, acceptance) for acceptance in method.acceptance],
        "pays_at_batches": [paying_batches(partial(gain, tokens=tokens), _LARGEST) for tokens in (low, high)],
    }


def _table(rows: list[dict[str, Any]], running: int) -> Table:
    def span(values: list[float]) -> str:
        return f"{values[0]:.2f} to {values[1]:.2f}" if values[0] != values[1] else f"{values[0]:.2f}"

    def whole(values: list[int]) -> str:
        return f"{values[0]} to {values[1]}" if values[0] != values[1] else str(values[0])

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
            whole(row["best_length_one"]),
            span(row["speedup_running"]),
            whole(row["best_length_running"]),
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
        "best drafts",
        f"of {running}",
        "best drafts",
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
    if facts.beside.draft is None and given.method not in ("none", "ngram", "lookahead"):
        notes.append(f"the draft's pass is taken as {given.draft_cost:.0%} of a step of the target")
    if facts.beside.draft is not None and facts.beside.draft.joined:
        notes.append("every pass of the head is timed with its fc, which the first pass of a round alone runs")
    section = facts.recipe.speculation if facts.recipe is not None else None
    if section is not None and section.method != "none" and section.adaptive and facts.recipe.target.one_rank:
        notes.append(
            "the engine's policy measures costs and acceptance and chooses each length itself: the best drafts are "
            "what it would choose at these times, max_draft_len at most"
        )
    if facts.parallel.pp > 1:
        notes.append("TensorRT-LLM does not combine speculation with pipeline parallelism")
    return notes
