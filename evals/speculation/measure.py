"""All measures of speculation over one loaded engine, and their gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evals.speculation.acceptance import Acceptance, acceptance_gate, count
from evals.speculation.asking import Asking, EngineAsking, Reply
from evals.speculation.distribution import Fit, distribution_gate, drafted_place, fit
from evals.speculation.equality import (
    Equality,
    Numerics,
    answer_both,
    compare_answers,
    equality_gate,
    greedy,
    named,
)
from evals.speculation.speed import Cell, measure_speed, overall, speed_gate
from runtime.sampling.params import SamplingParams
from trtforge.drafting.record import SpeculationRecord
from trtforge.ground.progress import Progress
from trtforge.recipe.schema_evals import SpeculationEvals, SpeculationGate
from trtforge.store.artifact import GateResult

if TYPE_CHECKING:
    from runtime.offline import Engine

#: acceptance of all classes together
ALL = "all"
#: seeds of sampled answers
SEED = 11

Prompts = Mapping[str, Sequence[Sequence[int]]]


@dataclass(frozen=True)
class Quality:
    """What does not depend on times: measured with drafts of the fixed, greatest length."""

    equality: Equality
    fits: tuple[Fit, ...]
    acceptance: tuple[Acceptance, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "greedy": self.equality.to_json(),
            "distribution": [one.to_json() for one in self.fits],
            "acceptance": [one.to_json() for one in self.acceptance],
        }

    @property
    def greedy_acceptance(self) -> Acceptance:
        """Of greedy answers of all classes."""
        return next(one for one in self.acceptance if one.kind == ALL and one.temperature == 0)


@dataclass(frozen=True)
class Speed:
    """What times decide: measured with the recipe's own policy.

    Attributes:
        cells: speed by class and concurrency.
        equality: the answers that were timed, with speculation against without.
        policy: what the policy says of itself afterwards: costs, acceptance, choices.
    """

    cells: tuple[Cell, ...]
    equality: Equality
    policy: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        found = overall(self.cells)
        return {
            "speedup": {"value": found.value, "low": found.low, "high": found.high, "confidence": found.confidence},
            "cells": [cell.to_json() for cell in self.cells],
            "greedy": self.equality.to_json(),
            "policy": dict(self.policy),
        }


@dataclass(frozen=True)
class Measured:
    """Both."""

    quality: Quality
    speed: Speed


def measure_quality(
    asking: Asking,
    prompts: Prompts,
    asked: SpeculationEvals,
    numerics: Numerics,
    *,
    together: int,
    ends: frozenset[int] = frozenset(),
    depth: int | None = None,
    decode: Any,
    progress: Progress,
) -> Quality:
    """Equality, acceptance and distribution.

    Args:
        together: samples of one request, at most the engine's batch.
        ends: tokens that end an answer.
        depth: levels of a tree draft; None: drafts are chains.
        decode: tokens to text.
    """
    names, all_prompts = named(prompts)
    temperatures = sorted({0.0, *asked.temperatures})
    progress.start("greedy answers with speculation and without", total=len(temperatures) + len(prompts))
    base, speculated = answer_both(asking, all_prompts, greedy(asked.max_tokens))
    equality = compare_answers(names, all_prompts, base, speculated, asking.logits, numerics, decode)
    acceptance: list[Acceptance] = []
    for temperature in temperatures:
        replies = speculated
        if temperature > 0:
            each = [
                SamplingParams(max_tokens=asked.max_tokens, temperature=temperature, seed=SEED + index)
                for index in range(len(all_prompts))
            ]
            replies = asking.answer(all_prompts, each, speculate=True).answers
        acceptance += _by_class(prompts, temperature, replies, depth)
        progress.advance()
    fits, first = [], 0
    for of_kind in prompts.values():
        last = first + len(of_kind)
        name, context = drafted_place(asking, names[first:last], of_kind, speculated[first:last])
        fits.append(fit(asking, name, context, draws=asked.draws, together=together, ends=ends))
        first = last
        progress.advance()
    return Quality(equality, tuple(fits), tuple(acceptance))


def _by_class(prompts: Prompts, temperature: float, replies: Sequence[Reply], depth: int | None) -> list[Acceptance]:
    found, first = [], 0
    for kind, of_kind in prompts.items():
        found.append(count(kind, temperature, replies[first : first + len(of_kind)], depth=depth))
        first += len(of_kind)
    return [*found, count(ALL, temperature, replies, depth=depth)]


def measure(
    engine: Engine,
    progress: Progress,
    prompts: Prompts,
    asked: SpeculationEvals,
    levels: Sequence[int],
    record: SpeculationRecord,
    noise: float | None,
) -> Measured:
    """Measure the engine in the process that holds it.

    Args:
        levels: requests in flight when speed is measured.
        record: what the engine was built to draft.
        noise: what parity measured (:func:`runtime.determinism.near_tie_bound`).

    Raises:
        ForgeError: ``TF-EVL-011`` the engine does not speculate; what its steps raise.
    """
    from runtime.speculation.fixed_policy import FixedPolicy

    asking = EngineAsking(engine)
    numerics = Numerics(str(engine.executor.describe()["activations"]), noise, engine.repeats_exactly)
    assert engine.tokenizer is not None
    decode = engine.tokenizer.decode
    with asking.policy(FixedPolicy(record.max_draft_len, tree=record.tree is not None)):
        quality = measure_quality(
            asking,
            prompts,
            asked,
            numerics,
            together=engine.core.limits.max_batch_size,
            ends=frozenset(engine.executor.eos_token_ids),
            depth=None if record.tree is None else record.tree.depth,
            decode=decode,
            progress=progress,
        )
    cells = measure_speed(
        asking, prompts, levels=levels, repeats=asked.repeats, max_tokens=asked.max_tokens, progress=progress
    )
    return Measured(quality, Speed(tuple(cells), _timed(prompts, cells, asking, numerics, decode), asking.explain()))


def _timed(prompts: Prompts, cells: Sequence[Cell], asking: Asking, numerics: Numerics, decode: Any) -> Equality:
    """The answers of every pair, as the policy chose to draft for them."""
    names: list[str] = []
    asked: list[Sequence[int]] = []
    base: list[Reply] = []
    speculated: list[Reply] = []
    for cell in cells:
        for pair in cell.pairs:
            names += [f"{cell.kind} {index + 1} at concurrency {cell.concurrency}" for index in pair.prompts]
            asked += [prompts[cell.kind][index] for index in pair.prompts]
            base += pair.base
            speculated += pair.speculated
    return compare_answers(names, asked, base, speculated, asking.logits, numerics, decode)


def gates(found: Measured, limits: SpeculationGate | None) -> list[GateResult]:
    """The recipe's gates over the measures; none where it has none."""
    if limits is None:
        return []
    verdicts = []
    if limits.max_differing is not None:
        both = joined(found.quality.equality, found.speed.equality)
        verdicts.append(equality_gate(both, limits.max_differing))
    if limits.alpha is not None:
        verdicts.append(distribution_gate(found.quality.fits, limits.alpha))
    if limits.min_accepted_length is not None:
        verdicts.append(acceptance_gate(found.quality.greedy_acceptance, limits.min_accepted_length))
    if limits.min_speedup is not None:
        verdicts.append(speed_gate(found.speed.cells, limits.min_speedup))
    return verdicts


def joined(one: Equality, other: Equality) -> Equality:
    """Both as one."""
    return Equality(
        one.answers + other.answers,
        one.tokens + other.tokens,
        one.drafted + other.drafted,
        one.accepted + other.accepted,
        (*one.differences, *other.differences),
    )
