"""One step's sequences, and of the ways to draft for them the one that is worth most.

A way is a number of passes of the draft (none: what lies ready alone) or trees. Within one the likeliest tokens of the
batch come first, and every number of them is looked at, because kernels jump between sizes. All ways are weighed at
once, as rows of the same arrays: a step's choice has to cost little beside a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.speculation.acceptance import Acceptance, tree_source
from runtime.speculation.costs import Seconds, StepCosts
from runtime.speculation.draft import Candidate, Choice
from trtforge.drafting.record import DynamicTree, StaticTree

#: power of the chance of each token at which drafts that do not pay nearly would: of 0.5 it makes 0.62, of 0.9 0.93
_NEAR = 0.7
#: share of a plain step's tokens that drafts have to bring in addition. The best of many estimates is the luckiest, too
_MARGIN = 0.015
#: tries of a source's first token from which on its acceptance counts as known
_KNOWN = 8.0
#: numbers of passes that are looked at in every step; of more, those around the last one and one other in turn
_EACH = 4


@dataclass(slots=True)
class Plan:
    """A way to draft in a step: draft tokens by sequence, whether its drafter has weights, and what it is worth."""

    counts: npt.NDArray[np.int64]
    model: npt.NDArray[np.bool_]
    tokens: float
    seconds: float
    passes: int = 0
    tree: bool = False

    @property
    def drafted(self) -> int:
        """Sequences for which the drafter with weights is asked."""
        return int((self.model & (self.counts > 0)).sum())


class Step:
    """One step's sequences with what their drafts would yield, and the times of all its sizes.

    Args:
        groups: candidates by sequence.
        length: longest chain.
        running: decoding sequences, those that cannot be drafted for included.
        prefill_tokens: of prompts in the same step.
        tree: the tree that the drafter with weights may make; None: chains alone.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Candidate]],
        length: int,
        running: int,
        prefill_tokens: int,
        *,
        costs: StepCosts,
        acceptance: Acceptance,
        tree: StaticTree | DynamicTree | None = None,
    ) -> None:
        self.groups, self.running, self.length = groups, running, length
        self._costs, self._acceptance = costs, acceptance
        self._ready: list[Candidate | None] = [next((one for one in group if one.ready), None) for group in groups]
        self._model: list[Candidate | None] = [next((one for one in group if not one.ready), None) for group in groups]
        self.with_model = [row for row, one in enumerate(self._model) if one is not None]
        self._has_ready = np.array([one is not None for one in self._ready], dtype=bool)
        self._kept_ready = self._kept(self._ready, length)
        self._kept_model = self._kept(self._model, length)
        self._made = self._made_of(length)
        self.tree = tree if self.with_model else None
        self._kept_tree = self._kept(self._model, self.tree.depth, tree=True) if self.tree is not None else None
        most = len(groups) * max(length, self.tree.nodes if self.tree is not None else 0)
        self._verify: Seconds = costs.verify(running + prefill_tokens, running + prefill_tokens + most, running)
        plain, drafting = costs.host(False, running), costs.host(True, running)
        self._host = (plain or drafting, drafting or plain)
        self.plain_seconds = float(self._verify[0]) + self._host[0]

    def without_prompts(self) -> Step:
        """The same sequences in a step that computes no prompt."""
        return Step(
            self.groups,
            self.length,
            self.running,
            0,
            costs=self._costs,
            acceptance=self._acceptance,
            tree=self.tree,
        )

    def model_of(self, row: int) -> Candidate:
        """The candidate whose drafter has weights."""
        found = self._model[row]
        assert found is not None
        return found

    def seconds(self, draft_tokens: int, levels: int, drafted: int, tree: bool = False) -> float:
        """Seconds of the step with so many draft tokens, ``levels`` passes of the draft for ``drafted`` requests."""
        verify = float(self._verify[min(draft_tokens, len(self._verify) - 1)])
        return verify + self._host[1] + self._costs.draft(levels, drafted, tree)

    def best(self, rate: float | None, *, last: int = 0, turn: int = 0) -> Plan:
        """The plan of the largest tokens - rate × seconds; without a rate that of most tokens a second.

        Args:
            last: passes of the last step's plan.
            turn: number of the step: which of the lengths far from ``last`` is looked at.
        """
        rows = len(self.groups)
        nothing = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
        best = Plan(*nothing, float(self.running), self.plain_seconds)
        found = self._drafting(self._kept_model, rate, last, turn)
        bar = _worth((1 + _MARGIN) * best.tokens, best.seconds, rate)
        return found if found is not None and _worth(found.tokens, found.seconds, rate) > bar else best

    def for_everybody(self, rate: float, *, last: int = 0, turn: int = 0) -> Plan | None:
        """The best plan that drafts for everybody whom that may serve; None: there is none.

        It costs hardly more than a draft for one of them, and tells of all. See :meth:`best` for the rest.
        """
        return self._drafting(self._kept_model, rate, last, turn, everybody=True)

    def nearly_pays(self, rate: float) -> bool:
        """Whether drafts by the drafter with weights would pay were they a little better, or little is known."""
        sources = {self.model_of(row).source for row in self.with_model}
        if any(self._acceptance.tries(source) < _KNOWN for source in sources):
            return True
        better = self._drafting(self._kept_model**_NEAR, rate)
        plain = _worth(float(self.running), self.plain_seconds, rate)
        return better is not None and _worth(better.tokens, better.seconds, rate) > plain

    def choices(self, plan: Plan, rate: float) -> list[Choice]:
        """The plan as choices."""
        counts, model = plan.counts.tolist(), plan.model.tolist()
        worth = self.token_worth(plan, rate)
        chosen = []
        for row, group in enumerate(self.groups):
            ready, drafted = self._ready[row], self._model[row]
            if model[row] and drafted is not None and counts[row]:
                chosen.append(Choice(drafted, counts[row], plan.tree, 0.0 if plan.tree else worth))
            else:
                chosen.append(Choice(ready or group[0], 0 if model[row] else counts[row]))
        return chosen

    def token_worth(self, plan: Plan, rate: float) -> float:
        """Tokens that the time of one more token of a chain costs: of verifying it, and its share of a pass."""
        drafted = plan.drafted
        if not drafted:
            return 0.0
        draft = self._costs.draft
        # what one pass more costs, not what the first one does: catching up with the target's states is paid by then
        last = max(plan.passes, 2)
        a_pass = (draft(last, drafted) - draft(1, drafted)) / (last - 1)
        token = self._token_seconds(int(plan.counts.sum()))
        return min(max(rate * (token + a_pass / drafted), 0.0), 0.9)

    def _token_seconds(self, most: int | None = None) -> float:
        """Of verifying a draft token, averaged over all sizes, or up to ``most``: a jump beyond them costs nothing."""
        last = len(self._verify) - 1 if most is None else min(most, len(self._verify) - 1)
        return float(self._verify[last] - self._verify[0]) / max(last, 1)

    def _drafting(
        self,
        kept_model: npt.NDArray[np.float64],
        rate: float | None,
        last: int = 0,
        turn: int = 0,
        *,
        everybody: bool = False,
    ) -> Plan | None:
        """The best of the plans that draft, if chains by the drafter with weights are kept as ``kept_model`` says.

        None: nothing can be kept.

        Args:
            everybody: only plans by the drafter with weights in which no token is left out.
        """
        token = (rate or self.running / self.plain_seconds) * self._token_seconds()
        passes = self._passes(last, turn)
        tree = self.tree
        # where nothing lies ready there is nothing to choose between: how far drafts pay is seen below, size by size
        value_ready = np.where(self._has_ready, np.maximum(self._kept_ready - token, 0.0).sum(axis=1), -1.0)
        # [ways, rows, tokens]: the chance that each token is kept, and how many tokens it stands for
        chain = np.where(np.arange(self.length) < np.array(passes)[:, None, None], kept_model, 0.0)
        model = np.maximum(chain - token * self._made, 0.0).sum(axis=2) > value_ready
        kept = np.where(model[:, :, None], chain, self._kept_ready)
        sizes = np.where(model[:, :, None], self._made, 1.0)
        order = kept
        if tree is not None:
            passes.append(tree.depth)
            kept, sizes, model = self._with_trees(kept, sizes, model, token, value_ready)
            order = kept.copy()
            order[-1] /= sizes[-1]
        ways, rows, width = kept.shape
        order = np.argsort(-order.reshape(ways, -1), axis=1, kind="stable")
        gains = np.take_along_axis(kept.reshape(ways, -1), order, axis=1)
        counted = np.take_along_axis(sizes.reshape(ways, -1), order, axis=1)
        drafted = counted.cumsum(axis=1)
        tokens = self.running + gains.cumsum(axis=1)
        # which chains end in doubt is not known before: between two sizes of a kernel both happen
        swing = np.sqrt(np.maximum(counted * (1 - counted), 0.0).cumsum(axis=1))
        seconds = (self._verified(drafted - swing) + self._verified(drafted + swing)) / 2 + self._host[1]
        row = order // width
        if len(passes) > 1:
            begins = np.take_along_axis(model, row, axis=1) & (order % width == 0)
            requests = begins.cumsum(axis=1)
            drafting = [self._drafts(number) for number in passes[: len(passes) - (tree is not None)]]
            if tree is not None:
                drafting.append(self._costs.drafts_by_requests(np.full(rows + 1, tree.depth), tree=True))
            seconds += np.take_along_axis(np.stack(drafting), requests, axis=1)
        counts_as = gains > 0
        if everybody:
            whole = counts_as.sum(axis=1, keepdims=True) - 1
            counts_as &= (np.arange(order.shape[1]) == whole) & model.any(axis=1)[:, None]
        worth = np.where(counts_as, _worth(tokens, seconds, rate), -np.inf)
        way, at = divmod(int(worth.argmax()), worth.shape[1])
        if not counts_as[way, at]:
            return None
        counts = np.bincount(row[way, : at + 1], minlength=rows)
        grown = tree if way == ways - 1 else None
        if grown is not None:
            counts = np.where(model[way], counts * grown.nodes, counts)
        return Plan(
            counts.astype(np.int64),
            model[way],
            float(tokens[way, at]),
            float(seconds[way, at]),
            passes[way],
            grown is not None,
        )

    def _verified(self, draft_tokens: npt.NDArray[np.float64]) -> Seconds:
        """Seconds of the target's steps of about so many draft tokens."""
        found: Seconds = self._verify[np.clip(np.rint(draft_tokens).astype(np.int64), 0, len(self._verify) - 1)]
        return found

    def _drafts(self, passes: int) -> Seconds:
        """Float64 [rows + 1]: seconds of drafts of ``passes`` for 0 to all sequences, those that all end sooner too."""
        ended = (1 - self._made[:passes]) ** np.arange(len(self.groups) + 1)[:, None]
        return self._costs.drafts_by_requests((1 - ended).sum(axis=1))

    def _with_trees(
        self,
        kept: npt.NDArray[np.float64],
        sizes: npt.NDArray[np.float64],
        model: npt.NDArray[np.bool_],
        token: float,
        value_ready: npt.NDArray[np.float64],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """The ways with one more: a tree for every sequence that is better served by it than by what lies ready."""
        assert self.tree is not None and self._kept_tree is not None
        gain = self._kept_tree.sum(axis=1)
        served = np.maximum(gain - token * self.tree.nodes, 0.0) > value_ready
        whole = np.where(served[:, None], 0.0, self._kept_ready)
        nodes = np.ones_like(whole)
        whole[served, 0], nodes[served, 0] = gain[served], self.tree.nodes
        return np.concatenate([kept, whole[None]]), np.concatenate([sizes, nodes[None]]), np.vstack([model, served])

    def _passes(self, last: int, turn: int) -> list[int]:
        """Numbers of passes to look at: 0 first."""
        longest = int((self._kept_model > 0).sum(axis=1).max(initial=0)) if self.with_model else 0
        turn %= longest + 1
        return [
            number
            for number in range(longest + 1)
            if number <= _EACH or number in (longest, turn) or abs(number - last) <= 1
        ]

    def _kept(self, candidates: Sequence[Candidate | None], positions: int, tree: bool = False) -> Any:
        """Float64 [rows, positions]: the chance that each draft token is kept; 0 where none can be."""
        kept = np.zeros((len(candidates), positions))
        rows = [row for row, one in enumerate(candidates) if one is not None]
        if not rows:
            return kept
        known = [one for one in candidates if one is not None]
        pairs = [(one.sequence, tree_source(one.source) if tree else one.source) for one in known]
        chances = self._acceptance.kept(pairs)[:, :positions]
        most = np.array([positions if tree else one.most for one in known])[:, None]
        kept[rows] = np.where(np.arange(positions) < most, chances, 0.0)
        return kept

    def _made_of(self, positions: int) -> npt.NDArray[np.float64]:
        """Float64 [positions]: the share of chains by the drafter with weights that reach each token asked for."""
        found = next((one for one in self._model if one is not None), None)
        return np.ones(positions) if found is None else self._acceptance.made(found.source)[:positions]


def _worth(tokens: Any, seconds: Any, rate: float | None) -> Any:
    return tokens / seconds if rate is None else tokens - rate * seconds
