"""What two models' samples say about each other, and the gates: made from what is stored, nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtforge.ground.section import Section
from trtforge.pipeline.stages.common import bad_record, plain, read_json, rounded
from trtforge.pipeline.stages.scoring import (
    HARNESS,
    LONG_CONTEXT_FILE,
    NEEDLES,
    NOISE,
    TAILS,
    TASKS,
    WINDOWS,
    load_answers,
    load_scores,
)
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult

#: before the name of a gate on tasks: the engine answered them
ENGINE = "engine_"
#: gates of the quantized model against the baseline
INCREASE, KL, TOP1, SANITY, SUITE = (
    "perplexity_increase",
    "baseline_kl",
    "baseline_top1",
    "generation_sanity",
    "task_suite",
)


def gates_section(recipe: Recipe) -> dict[str, Any]:
    """The gates that :func:`judge` holds the samples against."""
    evals = recipe.evals
    asked: dict[str, Section | None] = {
        "perplexity": evals.perplexity.gate,
        "generation": evals.generation.gate,
        "suite": evals.suite.gate,
    }
    asked |= {f"custom:{one.name}": one.gate for one in evals.custom}
    asked |= {"long_context": evals.long_context.gate} if evals.long_context.lengths else {}
    return {name: plain(gate) if gate is not None else None for name, gate in asked.items()}


def engine_task_gates(recipe: Recipe) -> tuple[str, ...]:
    """Names of the gates on the engine's own answers to tasks and in long contexts."""
    from evals.long_context import INCREASE_GATE, NEEDLES_GATE

    evals = recipe.evals
    suite = (f"{ENGINE}{SUITE}",) if evals.suite.samples and evals.suite.gate is not None else ()
    own = (f"{ENGINE}custom:{one.name}" for one in evals.custom if one.gate is not None)
    long, parts = evals.long_context, []
    if long.lengths and long.gate is not None:
        asked = {NEEDLES_GATE: long.gate.max_drop, INCREASE_GATE: long.gate.max_increase}
        parts = [f"{ENGINE}{name}" for name, limit in asked.items() if limit is not None]
    return (*suite, *own, *parts)


def judge(recipe: Recipe, baseline: Path, candidate: Path) -> tuple[dict[str, Any], list[GateResult]]:
    """Figures of a candidate's samples against the baseline's, and the gates' verdicts."""
    from evals.gates import at_most, bound_at_least
    from evals.generation import compare, sanity_gate
    from evals.statistics import paired_increase

    before, after = load_scores(baseline), load_scores(candidate)
    increase = paired_increase(before, after)
    answers = compare(load_answers(baseline), load_answers(candidate))
    figures: dict[str, Any] = {"increase": rounded(increase.to_json()), "generation": rounded(answers.to_json())}
    gates: list[GateResult] = []
    gate = recipe.evals.perplexity.gate
    noise = noise_of(baseline)
    if noise is not None:
        figures["noise"] = rounded(noise)
    if gate is not None:
        one = at_most(INCREASE, increase, gate.max_increase, pair=(before.perplexity, after.perplexity))
        gates.append(_with_noise(one, noise, "increase"))
    if (divergence := divergence_of(candidate)) is not None:
        kl, same = divergence
        figures["divergence"] = rounded({"kl": kl.to_json(), "top1": same.to_json()})
        if gate is not None and gate.max_kl is not None:
            gates.append(_with_noise(at_most(KL, kl, gate.max_kl, " nats"), noise, "kl"))
        if gate is not None and gate.min_top1_agreement is not None:
            one = bound_at_least(TOP1, same, gate.min_top1_agreement)
            gates.append(_with_noise(one, noise, "top1"))
    if (sane := recipe.evals.generation.gate) is not None:
        gates.append(sanity_gate(answers, sane.min_sane))
    tasks, more = judge_tasks(recipe, baseline, candidate)
    figures |= harness_of(baseline, candidate)
    probe, of_length = judge_long_context(recipe, baseline, candidate)
    return {**figures, **tasks, **probe}, [*gates, *more, *of_length]


def _with_noise(gate: GateResult, noise: dict[str, Any] | None, name: str) -> GateResult:
    """The gate's words with what the baseline differs from itself by."""
    if noise is None:
        return gate
    beside = f"; the baseline against itself, rounded to bfloat16: {noise[name]['value']:.3g}"
    return replace(gate, detail=gate.detail + beside)


def divergence_of(directory: Path, name: str = WINDOWS) -> tuple[Any, Any] | None:
    """Mean KL and top-1 agreement with the baseline, with intervals; None of samples that have none."""
    import numpy as np

    from evals.samples import read_samples, unpacked
    from evals.statistics import block_mean

    def read() -> tuple[Any, Any] | None:
        records = read_samples(directory, name)
        if not records or "kl" not in records[0]:
            return None
        kl, same = (np.concatenate([unpacked(record[part]) for record in records]) for part in ("kl", "same"))
        return block_mean(kl), block_mean(same)

    found: tuple[Any, Any] | None = _read(directory, name, read)
    return found


def noise_of(baseline: Path) -> dict[str, Any] | None:
    """The baseline against its own rounding: increase of perplexity, KL and top-1 agreement; None: not measured."""
    divergence = divergence_of(baseline, NOISE)
    if divergence is None:
        return None
    exact, rounded_ = losses_beside(baseline, baseline, NOISE)
    return {"tokens": len(exact), **departure(exact, rounded_, divergence)}


def losses_beside(baseline: Path, directory: Path, name: str) -> tuple[Any, Any]:
    """Losses of the windows that ``directory`` holds under ``name``, float64 [n]: the baseline's, and its own."""
    import numpy as np

    from evals.samples import read_samples, unpacked

    def read() -> tuple[Any, Any]:
        exact = {record["id"]: unpacked(record["nll"]) for record in read_samples(baseline, WINDOWS)}
        pairs = [(exact[record["id"]], unpacked(record["nll"])) for record in read_samples(directory, name)]
        before, after = (np.concatenate(side) for side in zip(*pairs, strict=True))
        if before.shape != after.shape:
            raise ValueError("its losses are not one for each of the baseline's")
        return before, after

    found: tuple[Any, Any] = _read(directory, name, read)
    return found


def departure(baseline: Any, own: Any, divergence: tuple[Any, Any]) -> dict[str, Any]:
    """How far losses are from the baseline's of the same tokens, with KL and top-1 agreement beside."""
    from evals.statistics import block_mean, growth

    named = {"increase": growth(block_mean(own - baseline)), "kl": divergence[0], "top1": divergence[1]}
    return {name: interval.to_json() for name, interval in named.items()}


def judge_tasks(
    recipe: Recipe, baseline: Path, candidate: Path, prefix: str = ""
) -> tuple[dict[str, Any], list[GateResult]]:
    """Suite and own tasks of a candidate against the baseline; nothing where neither answered any."""
    from evals.samples import read_samples
    from evals.tasks import answered_of, judge_answers

    before, after = (
        _read(side, TASKS, lambda s=side: answered_of(read_samples(s, TASKS)))  # type: ignore[misc]
        for side in (baseline, candidate)
    )
    figures, gates = judge_answers(before, after, recipe.evals, prefix)
    return rounded(figures), gates


def harness_of(baseline: Path, candidate: Path) -> dict[str, Any]:
    """Tasks of the harness, metric by metric against the baseline; nothing for a recipe without them."""
    from evals.harness import compare_harness

    both = _read(candidate, HARNESS, lambda: _both(baseline, candidate, HARNESS))
    if not both[0] or not both[1]:
        return {}
    return {"harness": rounded(_read(candidate, HARNESS, lambda: compare_harness(*both)))}


def judge_long_context(
    recipe: Recipe, baseline: Path, candidate: Path, prefix: str = ""
) -> tuple[dict[str, Any], list[GateResult]]:
    """Long contexts of a candidate against the baseline, at the lengths that the candidate reached; nothing where it
    was not probed."""
    from evals.long_context import long_context_gates

    found = _long_context_of(baseline, candidate)
    if found is None:
        return {}, []
    gate = recipe.evals.long_context.gate
    gates = [] if gate is None else long_context_gates(found["needles"], found["tail"], gate, prefix)
    return {"long_context": rounded({**found, "needles": found["needles"].to_json()})}, gates


def _long_context_of(baseline: Path, candidate: Path) -> dict[str, Any] | None:
    """Needles of both by length and depth, and the tail's perplexity under each context; None: not probed."""
    import numpy as np

    from evals.long_context import TAIL, needle_figures, tail_figures
    from evals.samples import unpacked
    from evals.tasks import answered_of, compare_tasks

    def read() -> dict[str, Any]:
        record = read_json(candidate / LONG_CONTEXT_FILE)
        lengths = [int(length) for length in record["lengths"]]
        tails = [np.concatenate([unpacked(row["nll"]) for row in rows]) for rows in _shared(baseline, candidate, TAILS)]
        if any(len(tail) != len(lengths) * TAIL for tail in tails):
            raise ValueError("the tails are not one a length")
        before, after = (answered_of(rows) for rows in _shared(baseline, candidate, NEEDLES))
        found, known = ({a.name: a.right for a in side} for side in (after, before))
        cells = [
            {**cell, "baseline_right": other["right"]}
            for cell, other in zip(
                needle_figures(record["needles"], found), needle_figures(record["needles"], known), strict=True
            )
        ]
        left_out = {"left_out": [int(length) for length in record["left_out"]]} if "left_out" in record else {}
        return {
            "needles": compare_tasks(before, after).overall,
            "cells": cells,
            "tail": tail_figures(tails[0], tails[1], lengths),
            **left_out,
        }

    if not (baseline / LONG_CONTEXT_FILE).is_file() or not (candidate / LONG_CONTEXT_FILE).is_file():
        return None
    found: dict[str, Any] | None = _read(candidate, TAILS, read)
    return found


def _shared(baseline: Path, candidate: Path, name: str) -> list[list[dict[str, Any]]]:
    """Samples of both, in the candidate's order: of the baseline those that the candidate has too."""
    before, after = _both(baseline, candidate, name)
    known = {record["id"]: record for record in before}
    return [[known[record["id"]] for record in after], after]


def _both(baseline: Path, candidate: Path, name: str) -> list[list[dict[str, Any]]]:
    from evals.samples import read_samples

    return [read_samples(side, name) for side in (baseline, candidate)]


def _read(directory: Path, name: str, read: Callable[[], Any]) -> Any:
    """What ``read`` returns; a torn or foreign file of samples is refused by name."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise bad_record(directory / "samples" / f"{name}.jsonl", str(error)) from error
