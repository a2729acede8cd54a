"""Parallelism: every split with its reason, the choice by goal, and what communication costs."""

from __future__ import annotations

from typing import Any, get_args

from builder.planner.communication import step_communication
from builder.planner.parallelism import Split, recommend
from builder.planner.report import plain
from builder.planner.types import Facts, Goal, Section, Table


def section(facts: Facts) -> Section:
    """The parallelism section."""
    valid = [split for split in facts.splits if split.valid]
    invalid = [split for split in facts.splits if not split.valid]
    advice = {}
    for goal in get_args(Goal):
        best = recommend(facts.splits, goal)
        advice[goal] = None if best is None else {"parallel": str(best[0].parallel), "why": best[1]}
    tokens = facts.serving.max_num_tokens
    prefill = step_communication(facts.model, facts.parallel, facts.gpu, tokens, network=facts.network)
    decode = step_communication(
        facts.model, facts.parallel, facts.gpu, facts.serving.max_batch_size, network=facts.network
    )
    headline = (
        f"{facts.parallel}, {facts.replicas} replica{'s' if facts.replicas > 1 else ''} on "
        f"{facts.count} GPU{'s' if facts.count > 1 else ''}: {facts.chosen}"
    )
    notes = [f"{goal}: {text['parallel']} ({text['why']})" for goal, text in advice.items() if text]
    if facts.parallel.gpus > 1:
        notes.append(
            f"communication of a step, at least: {prefill.total * 1000:.2f} ms for {tokens:,} tokens, "
            f"{decode.total * 1000:.3f} ms for {facts.serving.max_batch_size:,} "
            f"({', '.join(sorted({name for name in (decode.tensor_link, decode.pipeline_link) if name}))})"
        )
    notes.append("times are floors that rank the splits: bandwidth, arithmetic and links at their peak")
    data: dict[str, Any] = {
        "recommended": advice,
        "splits": [_row(split) for split in facts.splits],
        "communication": {"tokens": {str(tokens): plain(prefill), str(facts.serving.max_batch_size): plain(decode)}},
    }
    rows = [
        (
            str(split.parallel),
            split.replicas,
            "yes" if split.fits else "no",
            split.requests or "–",
            f"{split.single * 1000:.2f}" if split.single else "–",
            f"{split.step * 1000:.2f}" if split.step else "–",
            f"{split.tokens_per_second:,.0f}" if split.tokens_per_second else "–",
            "; ".join(split.notes),
        )
        for split in valid
    ]
    columns = ("split", "replicas", "fits", "requests", "step of 1, ms", "step of all, ms", "tokens/s at most", "mind")
    tables = [Table("Possible splits", columns, tuple(rows))]
    if invalid:
        reasons = tuple((str(split.parallel), "; ".join(split.reasons)) for split in invalid[:_SHOWN])
        more = f" (the first {_SHOWN} of {len(invalid)})" if len(invalid) > _SHOWN else ""
        tables.append(Table(f"Impossible splits{more}", ("split", "reason"), reasons))
    return Section("parallelism", "Parallelism", headline, data, tuple(tables), tuple(notes))


#: impossible splits that the report prints; --json has all
_SHOWN = 24


def _row(split: Split) -> dict[str, Any]:
    return {
        "parallel": plain(split.parallel),
        "replicas": split.replicas,
        "valid": split.valid,
        "reasons": list(split.reasons),
        "notes": list(split.notes),
        "fits": split.fits,
        "local": split.local,
        "requests": split.requests,
        "step_seconds": split.step,
        "single_step_seconds": split.single,
        "tokens_per_second": split.tokens_per_second,
    }
