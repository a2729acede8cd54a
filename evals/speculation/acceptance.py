"""How many tokens a verification yields: by class of prompts, temperature and position of the draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.speculation.asking import Reply
from evals.statistics import Interval, ratio_interval
from trtforge.store.artifact import GateResult


@dataclass(frozen=True, slots=True)
class Position:
    """One place of a draft, 1 the first.

    Attributes:
        reached: verifications whose draft had a token there.
        accepted: of them, those that accepted it.
    """

    reached: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What came of the drafts of one class at one temperature.

    Attributes:
        kind: class of the prompts, or ``all``.
        temperature: of the answers.
        prompts: answers counted.
        steps: steps behind the answers' first tokens, those without a draft included.
        verifications: steps that verified a draft.
        drafted, accepted: their draft tokens.
        accepted_length: tokens that a verification yields, the bonus token included, with its interval over prompts;
            None: there was none.
        tokens_per_step: the same over all steps.
        positions: by position of a chain (of a tree: by depth).
    """

    kind: str
    temperature: float
    prompts: int
    steps: int
    verifications: int
    drafted: int
    accepted: int
    accepted_length: Interval | None
    tokens_per_step: Interval | None
    positions: tuple[Position, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def count(kind: str, temperature: float, replies: Sequence[Reply], *, depth: int | None = None) -> Acceptance:
    """Count the rounds of ``replies``; a last round that ``max_tokens`` cut is left out.

    Args:
        depth: levels of a tree draft, whose tokens are no positions; None: drafts are chains.
    """
    kept = [reply.rounds[:-1] if reply.cut else reply.rounds for reply in replies]
    drafts = [[one for one in rounds if one.drafted] for rounds in kept]
    flat = [one for rounds in drafts for one in rounds]
    most = max((one.drafted for one in flat), default=0)
    longest = most if depth is None else min(depth, most)
    reach = [min(one.drafted, longest) for one in flat]
    return Acceptance(
        kind=kind,
        temperature=temperature,
        prompts=len(replies),
        steps=sum(len(rounds) for rounds in kept),
        verifications=len(flat),
        drafted=sum(one.drafted for one in flat),
        accepted=sum(one.accepted for one in flat),
        accepted_length=_per(drafts),
        tokens_per_step=_per(kept),
        positions=tuple(
            Position(sum(place <= n for n in reach), sum(place <= one.accepted for one in flat))
            for place in range(1, longest + 1)
        ),
    )


def _per(rounds: Sequence[Sequence[Any]]) -> Interval | None:
    """Tokens a round, resampled over the answers that have any."""
    some = [of_answer for of_answer in rounds if of_answer]
    if not some:
        return None
    return ratio_interval([sum(one.tokens for one in of) for of in some], [len(of) for of in some])


def acceptance_gate(found: Acceptance, least: float) -> GateResult:
    """The upper bound of the accepted length reaches ``least``: the sample is small, noise alone must not fail it."""
    length = found.accepted_length
    if length is None:
        detail = f"nothing was drafted, so no length can reach {least:.4g}"
        return GateResult("speculation_accepted_length", False, 0.0, least, detail)
    passed = length.high >= least
    detail = (
        f"a verification yields {length.value:.4g} tokens, {length.confidence:.0%} interval [{length.low:.4g}, "
        f"{length.high:.4g}] over {found.prompts} greedy answers; upper bound {length.high:.4g} "
        f"{'>=' if passed else '<'} limit {least:.4g}"
    )
    return GateResult("speculation_accepted_length", passed, length.value, least, detail, bound=length.high)
