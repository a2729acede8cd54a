"""Greedy answers with speculation against those without: the same tokens, or a near tie where they part.

Where an engine's answers repeat exactly (``Engine.repeats_exactly``) they must be identical. Elsewhere a
verification's larger batch may round otherwise: the first difference is excused when both tokens lie within the
near-tie bound of the base's best logit (:mod:`runtime.determinism`), by the base's own logits after the common prefix.
What follows a first difference is not compared: the two answer different contexts from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.speculation.asking import Asking, Reply
from runtime.determinism import first_divergence
from runtime.sampling.params import SamplingParams
from trtforge.store.artifact import GateResult

#: differences that a gate's detail names
NAMED = 3


@dataclass(frozen=True, slots=True)
class Numerics:
    """What decides how far rounding may move a logit; see :func:`runtime.determinism.near_tie_bound`."""

    activations: str = "bfloat16"
    noise: float | None = None
    repeats_exactly: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer with speculation leaves the one without.

    Attributes:
        prompt: its class and number.
        position: index into the answer.
        tokens: without and with speculation; -1: that answer had ended.
        words: the same as text.
        margin: how far the lower of the two logits lies under the base's best.
        bound: the margin that rounding explains there.
        excused: whether the two are a near tie.
    """

    prompt: str
    position: int
    tokens: tuple[int, int]
    words: tuple[str, str]
    margin: float
    bound: float
    excused: bool

    def __str__(self) -> str:
        return (
            f"{self.prompt} at token {self.position}: {self.words[0]!r} without, {self.words[1]!r} with speculation, "
            f"margin {self.margin:.3g}, bound {self.bound:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Equality:
    """Attributes:
    answers: answers compared.
    tokens: tokens of the base's.
    drafted: draft tokens that were verified on the way.
    accepted: of them, accepted ones.
    differences: the first one of every answer that differs.
    """

    answers: int
    tokens: int
    drafted: int
    accepted: int
    differences: tuple[Difference, ...]

    @property
    def beyond(self) -> tuple[Difference, ...]:
        """Those that rounding does not explain."""
        return tuple(found for found in self.differences if not found.excused)

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "beyond_tolerance": len(self.beyond),
            "differences": [asdict(found) for found in self.differences],
        }


def greedy(max_tokens: int, *, exact: bool = False) -> SamplingParams:
    """Greedy parameters; ``exact``: neither fewer nor more than ``max_tokens``."""
    if exact:
        return SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def compare_answers(
    names: Sequence[str],
    prompts: Sequence[Sequence[int]],
    base: Sequence[Reply],
    speculated: Sequence[Reply],
    logits: Callable[[Sequence[int]], Any],
    numerics: Numerics,
    decode: Callable[[Sequence[int]], str],
) -> Equality:
    """Compare answer by answer; ``logits`` are the base's, of every position of the tokens that it is given."""
    differences = []
    for name, prompt, one, other in zip(names, prompts, base, speculated, strict=True):
        found = first_divergence(
            one.token_ids,
            other.token_ids,
            lambda before, prompt=prompt: logits([*prompt, *before])[-1],  # type: ignore[misc]
            dtype=numerics.activations,
            noise=numerics.noise,
        )
        if found is None:
            continue
        words = tuple("(its end)" if token < 0 else decode([token]) for token in found.tokens)
        bound = 0.0 if numerics.repeats_exactly else found.epsilon
        excused = found.near_tie and not numerics.repeats_exactly
        differences.append(
            Difference(name, found.position, found.tokens, (words[0], words[1]), found.gap, bound, excused)
        )
    rounds = [item for reply in speculated for item in reply.rounds]
    return Equality(
        answers=len(base),
        tokens=sum(len(reply.token_ids) for reply in base),
        drafted=sum(item.drafted for item in rounds),
        accepted=sum(item.accepted for item in rounds),
        differences=tuple(differences),
    )


def named(prompts: Mapping[str, Sequence[Sequence[int]]]) -> tuple[list[str], list[Sequence[int]]]:
    """Prompts of all classes one behind another, with names such as ``chat 1``."""
    names = [f"{kind} {number}" for kind, of_kind in prompts.items() for number in range(1, len(of_kind) + 1)]
    return names, [prompt for of_kind in prompts.values() for prompt in of_kind]


def equality_gate(found: Equality, limit: int) -> GateResult:
    """No more than ``limit`` answers differ beyond the tolerance, and drafts were verified at all."""
    beyond = found.beyond
    passed = len(beyond) <= limit and found.drafted > 0
    excused = len(found.differences) - len(beyond)
    detail = (
        f"{len(beyond)} of {found.answers} greedy answers ({found.tokens} tokens) leave the ones without speculation "
        f"beyond the near-tie bound, limit {limit}; {excused} part at a near tie; "
        f"{found.accepted} of {found.drafted} draft tokens accepted"
    )
    if not found.drafted:
        detail += "; nothing was drafted, so nothing was tested"
    if beyond:
        detail += "; " + "; ".join(str(one) for one in beyond[:NAMED])
    return GateResult("speculation_greedy", passed, float(len(beyond)), float(limit), detail)


def answer_both(
    asking: Asking, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[tuple[Reply, ...], tuple[Reply, ...]]:
    """Answers without and with speculation."""
    each = [params] * len(prompts)
    base = asking.answer(prompts, each, speculate=False).answers
    return base, asking.answer(prompts, each, speculate=True).answers


__all__ = [
    "Difference",
    "Equality",
    "Numerics",
    "answer_both",
    "compare_answers",
    "equality_gate",
    "greedy",
    "named",
]
