"""What speculative decoding is worth: expected tokens a round, speed-up, and the batches at which it pays.

Policy: an acceptance rate that nobody measured is an assumption and is named as one. The chain formulas
assume independent acceptance of every draft token with one probability; real acceptance falls with depth,
so they are an upper bound for a measured rate of the first token.

Sources: chains: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding",
2023, https://arxiv.org/abs/2211.17192 (equation 1). Trees: Chen et al., "Sequoia", 2024,
https://arxiv.org/abs/2402.12374 (section 3: the expected length is the sum over nodes of the product of
acceptances on the way to them), the same sum as Medusa's, https://arxiv.org/abs/2401.10774 (section 2.3).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.rounds import chain_tokens

#: acceptance of one draft token that plans assume where none was measured: (low, high), wide on purpose
ASSUMED_ACCEPTANCE: dict[str, tuple[float, float]] = {
    "ngram": (0.2, 0.6),
    "draft_target": (0.5, 0.8),
    "eagle": (0.6, 0.75),
    "eagle3": (0.6, 0.85),
    "medusa": (0.5, 0.7),
    "lookahead": (0.2, 0.5),
}
#: time of one draft pass over one step of the target, where the draft's own shapes are not known: n-gram
#: look-up and heads inside the target's step cost next to nothing, EAGLE's single layer a few per cent of a
#: model of 30 to 80 layers, a draft model the 1/20 of the usual pairs (8B for 70B is nearer 1/8)
DRAFT_COST = {"ngram": 0.0, "lookahead": 0.0, "medusa": 0.01, "eagle": 0.04, "eagle3": 0.04, "draft_target": 0.05}
#: draft tokens a step where the recipe names none
DEFAULT_DRAFT_LENGTH = 4


def expected_tokens(acceptance: float, draft_length: int) -> float:
    """Tokens that a round of a chain yields: (1 − α^(K+1)) / (1 − α), the bonus token counted.

    Leviathan et al. 2023, equation 1. ``acceptance`` α of [0, 1], ``draft_length`` K ≥ 0.

    Raises:
        ForgeError: ``TF-PLN-050`` a value outside its range.
    """
    _check_acceptance(acceptance)
    if draft_length < 0:
        raise _bad("draft length", draft_length, "0 or more")
    return chain_tokens([acceptance] * draft_length)


def expected_tokens_of_tree(choices: Sequence[Sequence[int]], acceptance_by_rank: Sequence[float]) -> float:
    """Tokens that a round of a static tree yields: 1 + Σ over nodes of Π of the acceptances on the path.

    Sequoia 2024, section 3 (positional acceptance: the probability depends on a candidate's rank only).

    Args:
        choices: the path of every node as ranks of its ancestors and itself, as ``speculation.choices`` holds.
        acceptance_by_rank: probability that the candidate of rank r is the accepted one; they sum to at most 1.

    Raises:
        ForgeError: ``TF-PLN-050`` a probability outside its range, ``TF-PLN-051`` a node whose parent is
            missing, a node twice, or a rank without a probability.
    """
    for value in acceptance_by_rank:
        _check_acceptance(value)
    if sum(acceptance_by_rank) > 1 + 1e-9:
        raise _bad("sum of the acceptances by rank", sum(acceptance_by_rank), "at most 1")
    nodes = [tuple(path) for path in choices]
    known = set(nodes)
    if len(known) != len(nodes):
        raise _bad_tree("a node is listed twice", nodes)
    total = 1.0
    for path in nodes:
        if not path or (len(path) > 1 and path[:-1] not in known):
            raise _bad_tree(f"the parent of node {list(path)} is missing", nodes)
        if max(path) >= len(acceptance_by_rank) or min(path) < 0:
            raise _bad_tree(f"node {list(path)} has a rank without an acceptance", nodes)
        product = 1.0
        for rank in path:
            product *= acceptance_by_rank[rank]
        total += product
    return total


def acceptance_by_rank(acceptance: float, ranks: int) -> list[float]:
    """The chance that the candidate of each rank is the accepted one: α (1 − α)^r, tried one after another.

    Each candidate is accepted with α once those before it were rejected (multi-step speculative sampling: Miao et
    al., "SpecInfer", 2023, https://arxiv.org/abs/2305.09781, section 4.3, with one α for all).
    """
    _check_acceptance(acceptance)
    return [acceptance * (1 - acceptance) ** rank for rank in range(ranks)]


def grown_tree(acceptance: float, depth: int, top_k: int, total: int) -> tuple[tuple[int, ...], ...]:
    """The ``total`` likeliest nodes of ``depth`` levels with ``top_k`` children a node: what a dynamic tree grows to.

    A node's likelihood is the product of :func:`acceptance_by_rank` on the way to it, as Sequoia 2024, section 3,
    builds its trees; the real one follows the draft's own probabilities, prompt by prompt.
    """
    ranks = acceptance_by_rank(acceptance, top_k)
    front: list[tuple[float, tuple[int, ...]]] = [(-ranks[rank], (rank,)) for rank in range(top_k)]
    heapq.heapify(front)
    nodes: list[tuple[int, ...]] = []
    while front and len(nodes) < total:
        chance, path = heapq.heappop(front)
        nodes.append(path)
        if len(path) < depth:
            for rank in range(top_k):
                heapq.heappush(front, (chance * ranks[rank], (*path, rank)))
    return tuple(nodes)


def paying_batches(gain: Callable[[int], float], largest: int) -> list[tuple[int, int]]:
    """The intervals of batches up to ``largest`` in which the speed-up exceeds 1; empty where it never pays.

    ``gain(batch)`` is the speed-up of a batch. For a dense model it falls with the batch; with experts it also rises:
    drafts of one request read more experts, those of many read experts that are read anyway. So all powers of two
    and the points between them are looked at, and each crossing is narrowed by halving.
    """
    if largest < 1:
        raise _bad("largest batch", largest, "1 or more")
    looked = sorted({min(max(round(2 ** (step / 4)), 1), largest) for step in range(4 * largest.bit_length() + 1)})
    pays = [gain(batch) > 1 for batch in looked]
    found: list[tuple[int, int]] = []
    for index, batch in enumerate(looked):
        if not pays[index]:
            continue
        before, after = index > 0 and not pays[index - 1], index + 1 < len(looked) and not pays[index + 1]
        if index == 0 or before:
            found.append((_crossing(gain, looked[index - 1], batch)[1] if before else batch, batch))
        last = _crossing(gain, batch, looked[index + 1])[0] if after else batch
        found[-1] = (found[-1][0], last)
    return found


def _crossing(gain: Callable[[int], float], low: int, high: int) -> tuple[int, int]:
    """Neighbouring batches between ``low`` and ``high`` on the two sides of a speed-up of 1."""
    pays = gain(low) > 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (gain(middle) > 1) == pays else (low, middle)
    return low, high


@dataclass(frozen=True)
class Speculating:
    """How a plan speculates: ``acceptance`` (low, high) of a draft token, and the draft's cost.

    ``draft_cost`` is the time of one draft step over the target's plain step of the same batch (0: n-gram
    and heads that ride along). ``measured`` says whether the acceptance was measured.
    """

    method: str = "none"
    draft_length: int = 0
    acceptance: tuple[float, float] = (0.0, 0.0)
    draft_cost: float = 0.0
    choices: tuple[tuple[int, ...], ...] | None = None
    measured: bool = False

    @property
    def verified_tokens(self) -> int:
        """Tokens a request that a step computes: the last accepted one and the drafts."""
        if self.method == "none":
            return 1
        return 1 + (len(self.choices) if self.choices else self.draft_length)

    @property
    def draft_steps(self) -> int:
        """Draft passes a round: the tree's depth, or the chain's length."""
        if self.method == "none":
            return 0
        return max((len(path) for path in self.choices), default=0) if self.choices else self.draft_length

    @property
    def tokens_a_round(self) -> tuple[float, float]:
        """Expected tokens a step, for the low and the high acceptance."""
        if self.method == "none":
            return 1.0, 1.0
        low, high = (self._tokens(value) for value in self.acceptance)
        return low, high

    def _tokens(self, acceptance: float) -> float:
        if not self.choices:
            return expected_tokens(acceptance, self.draft_length)
        ranks = 1 + max(max(path) for path in self.choices)
        return expected_tokens_of_tree(self.choices, acceptance_by_rank(acceptance, ranks))

    def to_json(self) -> dict[str, Any]:
        """The figures as one JSON-able object."""
        return {
            "method": self.method,
            "draft_length": self.draft_length,
            "acceptance": list(self.acceptance),
            "measured": self.measured,
            "verified_tokens": self.verified_tokens,
            "draft_steps": self.draft_steps,
            "tokens_a_round": list(self.tokens_a_round),
            "draft_cost": self.draft_cost,
        }


NONE = Speculating()


def assumed(method: str, draft_length: int | None = None, acceptance: float | None = None) -> Speculating:
    """A plan's speculation from a recipe's method: measured ``acceptance``, or the assumed range.

    Raises:
        ForgeError: ``TF-PLN-050`` an acceptance outside [0, 1].
    """
    if method == "none":
        return NONE
    if acceptance is not None:
        _check_acceptance(acceptance)
    low, high = (acceptance, acceptance) if acceptance is not None else ASSUMED_ACCEPTANCE[method]
    return Speculating(
        method,
        DEFAULT_DRAFT_LENGTH if draft_length is None else draft_length,
        (low, high),
        draft_cost=DRAFT_COST[method],
        measured=acceptance is not None,
    )


def _check_acceptance(value: float) -> None:
    if not 0 <= value <= 1:
        raise _bad("acceptance", value, "a probability between 0 and 1")


def _bad(what: str, value: float, allowed: str) -> ForgeError:
    return ForgeError(
        "TF-PLN-050",
        f"The {what} is {value:g}",
        asked=f"{what} {value:g}",
        numbers={what.replace(" ", "_"): value if math.isfinite(value) else str(value)},
        why="Speculation is planned with probabilities and counts.",
        remedies=[f"Give {allowed}"],
    )


def _bad_tree(message: str, nodes: Sequence[tuple[int, ...]]) -> ForgeError:
    return ForgeError(
        "TF-PLN-051",
        f"The draft tree is not one: {message}",
        asked=f"speculation.choices of {len(nodes)} nodes",
        numbers={"nodes": [list(node) for node in nodes[:16]]},
        why="Every node is the path from the root to it, so its parent must be a node too.",
        remedies=["List every prefix of every path once", "Give an acceptance for every rank that is used"],
    )
