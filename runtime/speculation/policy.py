"""Who is drafted for in a step, by whom, and how far: what yields most tokens for the time it costs.

Each step weighs drafts over the whole batch. The n-th draft token of a sequence adds the chance that it is kept; what
it costs is its share of the target's step (by all tokens of the step, so that a kernel that jumps between two sizes is
seen) and of the draft's passes (as many as the longest chain). Sorted by what they add, the first so many tokens of the
batch are the best so many, and every number of them is looked at.

A step is worth its tokens less its time at the going rate of tokens a second (Dinkelbach, "On Nonlinear Fractional
Programming", Management Science 13, 1967: the ratio of two sums is largest where the difference at that ratio is 0). So
a step in which much is likely drafts further than one in which little is, and one that computes a prompt anyway is not
taken for a cheap one to draft in.

Where nothing is drafted nothing is learned, so now and then a draft is made that the plan has not: a token for a
sequence that is not drafted for, or one more than was planned. What these cost stays under :data:`PROBE_SHARE` of the
time. Whether n-gram drafts are right is learned without them (:mod:`runtime.speculation.shadow`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.acceptance import Acceptance, tree_source
from runtime.speculation.costs import Seconds, StepCosts
from runtime.speculation.draft import Candidate, Choice, Point, Policy
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ngram import sources_of
from runtime.speculation.overrides import Overrides
from trtforge.drafting.record import DraftPolicy, DynamicTree, SpeculationRecord, StaticTree
from trtforge.ground.rounds import best_length

#: time that drafts of unknown worth may cost at most
PROBE_SHARE = 0.015
#: probes that can be saved up for
_PROBES_SAVED = 2.0
#: steps over which the going rate is averaged
_RATE_STEPS = 50.0
#: how much of the going rate beyond that without drafts a step has to keep up with. All of it would be right if
#: acceptance were known; a little less keeps drafting through an unlucky spell, from which off learns nothing
_RATE_SHARE = 0.8


def open_policy(record: SpeculationRecord, costs: StepCosts) -> Policy:
    """The policy that an engine's record asks for."""
    if record.policy.adaptive and record.policy.draft_len_schedule is None:
        sources = [record.method] if record.draft is not None else []
        if record.ngram is not None:
            sources += sources_of(record.ngram.min_matching_ngram_size)
        return AdaptivePolicy(record.max_draft_len, costs, tree=record.tree, overrides=record.policy, sources=sources)
    return FixedPolicy(record.max_draft_len, tree=record.tree is not None, overrides=record.policy)


@dataclass(slots=True)
class _Plan:
    """A way to draft in a step: draft tokens by sequence, whether its drafter has weights, and what it is worth."""

    counts: npt.NDArray[np.int64]
    model: npt.NDArray[np.bool_]
    tokens: float
    seconds: float
    passes: int = 0
    tree: bool = False


@dataclass(slots=True)
class _Rate:
    """Tokens and seconds of steps of one number of requests, averaged; seconds without the machine's scale."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0

    def add(self, tokens: float, seconds: float) -> None:
        self.steps += 1
        step = max(1 / self.steps, 1 / _RATE_STEPS)
        self.tokens += step * (tokens - self.tokens)
        self.seconds += step * (seconds - self.seconds)


@dataclass(slots=True)
class _Asked:
    """Drafts chosen of one source, their tokens, and the length of late."""

    drafts: int = 0
    tokens: int = 0
    recent: float = 0.0

    def add(self, tokens: int) -> None:
        self.drafts += 1
        self.tokens += tokens
        self.recent += max(1 / self.drafts, 0.02) * (tokens - self.recent)


@dataclass(slots=True)
class _Counts:
    """What was chosen, for the explanation: steps, steps that drafted, probes, draft tokens asked for by source."""

    steps: int = 0
    drafting: int = 0
    probes: int = 0
    asked: dict[str, _Asked] = field(default_factory=dict)


class AdaptivePolicy:
    """Chooses by costs and acceptance.

    Args:
        max_draft_len: longest chain.
        costs: what steps cost; kept up to date here.
        tree: the tree that the drafter with weights can make instead of a chain.
        overrides: limits of the recipe.
        sources: who may draft, to be explained before they have.
    """

    def __init__(
        self,
        max_draft_len: int,
        costs: StepCosts,
        *,
        tree: StaticTree | DynamicTree | None = None,
        overrides: DraftPolicy = DraftPolicy(),
        sources: Sequence[str] = (),
    ) -> None:
        self.max_draft_len = max_draft_len
        self.costs = costs
        self.acceptance = Acceptance(max(max_draft_len, tree.depth if tree is not None else 0))
        self._tree = tree
        self._sources = sources
        self._overrides = Overrides(overrides)
        self._rates: dict[int, _Rate] = {}
        self._credit = 0.0
        self._probing = 0.0
        self._probed: dict[TokenSequence, int] = {}
        self._counts = _Counts()
        #: passes of the draft in the last step's plan
        self.last_passes = 0

    # -- choosing ------------------------------------------------------------------------------------

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        """See :class:`~runtime.speculation.draft.Policy`."""
        self._overrides.step()
        self.acceptance.step()
        self._counts.steps += 1
        length = self._overrides.length(running, self.max_draft_len)
        if length <= 0 or not candidates:
            return [Choice(group[0], 0) for group in candidates]
        step = _Step(self, candidates, length, max(running, len(candidates)), prefill_tokens)
        rate = self._rate(step, prefill_tokens)
        plan = step.best(rate)
        self.last_passes = plan.passes
        if not prefill_tokens:
            known = self._rates.setdefault(step.running, _Rate())
            known.add(plan.tokens, plan.seconds / math.exp(self.costs.scale))
        choices = step.choices(plan, rate)
        self._probe(step, plan, choices)
        self._count(choices)
        return choices

    def _rate(self, step: _Step, prefill_tokens: int) -> float:
        """Tokens a second that this batch yields as it goes: what a second is worth."""
        known = self._rates.get(step.running)
        if known is not None:
            rate = known.tokens / (known.seconds * math.exp(self.costs.scale))
        else:
            alone = step if not prefill_tokens else step.without_prompts()
            plan = alone.best(None)
            rate = plan.tokens / plan.seconds
        plain = step.running / step.plain_seconds
        return plain + _RATE_SHARE * max(rate - plain, 0.0)

    def _probe(self, step: _Step, plan: _Plan, choices: list[Choice]) -> None:
        """Spend what was saved up on a draft that the plan has not, to learn what it is worth and what it costs."""
        self._probing = 0.0
        probe = self._unasked(step, plan, choices) or self._stretched(step, choices)
        if probe is None:
            return
        row, choice, levels = probe
        drafted = int((plan.model & (plan.counts > 0)).sum())
        new = not choice.candidate.ready and not (choices[row].count and not choices[row].candidate.ready)
        tokens = int(plan.counts.sum()) + choice.count - choices[row].count
        passes = max(levels, plan.passes) if not choice.candidate.ready else plan.passes
        cost = max(step.seconds(tokens, passes, drafted + new) - plan.seconds, 0.0)
        if not choice.candidate.ready:
            # two lengths' measured times may say that the longer one is free: it costs its share of the drafting
            cost = max(cost, self.costs.draft(levels, drafted + new) / levels)
        self._credit = min(self._credit + PROBE_SHARE * plan.seconds, _PROBES_SAVED * cost)
        if self._credit < cost:
            return
        self._credit -= cost
        if new and not drafted:
            self._probing = self.costs.draft(levels, 1)
        self._probed[choice.candidate.sequence] = self._counts.steps
        self._counts.probes += 1
        choices[row] = choice

    def _unasked(self, step: _Step, plan: _Plan, choices: Sequence[Choice]) -> tuple[int, Choice, int] | None:
        """A draft by the drafter with weights for a sequence that has none, in turn; every other time a tree."""
        rows = [row for row in step.with_model if not choices[row].count]
        tree = None if plan.tree or self._counts.probes % 2 == 0 else step.tree
        if tree is not None:
            rows = rows or [row for row in step.with_model if not choices[row].candidate.ready]
        if not rows:
            return None
        row = min(rows, key=lambda number: self._probed.get(choices[number].candidate.sequence, -1))
        candidate = step.model_of(row)
        if tree is not None:
            return row, Choice(candidate, tree.nodes, True), tree.depth
        return row, Choice(candidate, 1), 1

    def _stretched(self, step: _Step, choices: Sequence[Choice]) -> tuple[int, Choice, int] | None:
        """One token more than planned, in turn: what lies beyond the plan is known from load and by guess alone."""
        rows = [
            row
            for row, choice in enumerate(choices)
            if 0 < choice.count < min(choice.candidate.most, step.length) and not choice.tree
        ]
        if not rows:
            return None
        row = min(rows, key=lambda number: self._probed.get(choices[number].candidate.sequence, -1))
        choice = replace(choices[row], count=choices[row].count + 1, worth=0.0)
        return row, choice, choice.count

    def _count(self, choices: Sequence[Choice]) -> None:
        drafting = False
        for choice in choices:
            if choice.count:
                drafting = True
                self._counts.asked.setdefault(choice.candidate.source, _Asked()).add(choice.count)
        self._counts.drafting += drafting

    @property
    def turn(self) -> int:
        """Number of this step."""
        return self._counts.steps

    # -- learning ------------------------------------------------------------------------------------

    def record(self, sequence: TokenSequence, source: str, drafted: int, accepted: int, *, tree: bool) -> None:
        """See :class:`~runtime.speculation.draft.Policy`."""
        self._overrides.verified(drafted, accepted)
        if tree and self._tree is not None:
            self.acceptance.record(sequence, tree_source(source), min(drafted, self._tree.depth), accepted)
        else:
            self.acceptance.record(sequence, source, drafted, accepted)

    def learn(self, sequence: TokenSequence, source: str, drafted: int, accepted: int) -> None:
        """A draft that was not verified, held against what was written."""
        self.acceptance.record(sequence, source, drafted, accepted)

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """See :class:`~runtime.speculation.draft.Policy`."""
        if part == "draft" and self._probing:
            # A drafter that was not asked for long has states to catch up with: probes pay for that too.
            self._credit -= max(seconds - self._probing, 0.0)
            self._probing = 0.0
            return
        self.costs.observe(part, tokens, requests, seconds)

    def leave(self, sequence: TokenSequence) -> None:
        """Forget the sequence."""
        self.acceptance.leave(sequence)
        self._probed.pop(sequence, None)

    # -- explaining ----------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        """See :class:`~runtime.speculation.draft.Policy`."""
        yield "spec_decode_policy_ended", {}, float(self._overrides.ended)
        for source, asked in list(self._counts.asked.items()):
            yield "spec_decode_policy_draft_len", {"source": source}, asked.recent
        for source, rates in self.acceptance.snapshot().items():
            for position, rate in enumerate(rates):
                yield "spec_decode_policy_acceptance", {"source": source, "position": str(position)}, rate
        for tokens in range(1, self.max_draft_len + 2):
            yield "spec_decode_policy_verify_seconds", {"tokens": str(tokens)}, self.costs.step(tokens, 1)
        if self.costs.drafts:
            for tokens in range(1, self.max_draft_len + 1):
                yield "spec_decode_policy_draft_seconds", {"tokens": str(tokens)}, self.costs.draft(tokens, 1)

    def explain(self) -> dict[str, Any]:
        """See :class:`~runtime.speculation.draft.Policy`."""
        acceptance = self.acceptance.explain(self._sources)
        batches = sorted({1, *self.costs.measured["requests"], *self._rates})
        return {
            "adaptive": True,
            "max_draft_len": self.max_draft_len,
            "overrides": self._overrides.explain(),
            "costs": self.costs.explain(),
            "acceptance": acceptance,
            "choices": {str(batch): self._lengths(batch, list(acceptance)) for batch in batches},
            "steps": self._counts.steps,
            "drafting_steps": self._counts.drafting,
            "probes": self._counts.probes,
            "mean_length": {
                source: round(asked.tokens / asked.drafts, 3) for source, asked in sorted(self._counts.asked.items())
            },
        }

    def _lengths(self, batch: int, sources: Sequence[str]) -> dict[str, dict[str, float]]:
        """By source: the length that would pay best if all of ``batch`` requests were drafted for by it."""
        found = {}
        most = self._overrides.length(batch, self.max_draft_len)
        for source in sources:
            if source.endswith(tree_source("")):
                continue
            drafted = not source.startswith("ngram/")

            def verification(length: int) -> float:
                return self.costs.step(batch * (1 + length), batch) + self.costs.host(length > 0, batch)

            def drafting(length: int, drafted: bool = drafted) -> float:
                return self.costs.draft(length, batch) if drafted else 0.0

            length, gain = best_length(self.acceptance.rates(source)[:most].tolist(), verification, drafting)
            found[source] = {"draft_tokens": length, "speedup": round(gain, 3)}
        return found


class _Step:
    """One step's sequences with what their drafts would yield, and the times of all its sizes."""

    def __init__(
        self,
        policy: AdaptivePolicy,
        groups: Sequence[Sequence[Candidate]],
        length: int,
        running: int,
        prefill_tokens: int,
    ) -> None:
        self.policy, self.groups, self.running, self.length = policy, groups, running, length
        self._ready: list[Candidate | None] = [next((one for one in group if one.ready), None) for group in groups]
        self._model: list[Candidate | None] = [next((one for one in group if not one.ready), None) for group in groups]
        self.with_model = [row for row, one in enumerate(self._model) if one is not None]
        self._kept_ready = self._kept(self._ready, length)
        self._kept_model = self._kept(self._model, length)
        self.tree = policy._tree if self.with_model and length == policy.max_draft_len else None
        self._kept_tree = self._kept(self._model, self.tree.depth, tree=True) if self.tree is not None else None
        most = len(groups) * max(length, self.tree.nodes if self.tree is not None else 0)
        costs = policy.costs
        self._verify: Seconds = costs.verify(running + prefill_tokens, running + prefill_tokens + most, running)
        plain, drafting = costs.host(False, running), costs.host(True, running)
        self._host = (plain or drafting, drafting or plain)
        self.plain_seconds = float(self._verify[0]) + self._host[0]

    def without_prompts(self) -> _Step:
        """The same sequences in a step that computes no prompt."""
        return _Step(self.policy, self.groups, self.length, self.running, 0)

    def model_of(self, row: int) -> Candidate:
        """The candidate whose drafter has weights."""
        found = self._model[row]
        assert found is not None
        return found

    def seconds(self, draft_tokens: int, levels: int, drafted: int) -> float:
        """Seconds of the step with so many draft tokens, ``levels`` passes of the draft for ``drafted`` requests."""
        verify = float(self._verify[min(draft_tokens, len(self._verify) - 1)])
        return verify + self._host[1] + self.policy.costs.draft(levels, drafted)

    def best(self, rate: float | None) -> _Plan:
        """The plan of the largest tokens - rate × seconds; without a rate that of most tokens a second."""
        rows = len(self.groups)
        nothing = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
        best = _Plan(*nothing, float(self.running), self.plain_seconds)
        for plan in self._plans(rate):
            if _worth(plan.tokens, plan.seconds, rate) > _worth(best.tokens, best.seconds, rate):
                best = plan
        return best

    def choices(self, plan: _Plan, rate: float) -> list[Choice]:
        """The plan as choices."""
        counts, model = plan.counts.tolist(), plan.model.tolist()
        worth = self._token_worth(plan, rate)
        chosen = []
        for row, group in enumerate(self.groups):
            ready, drafted = self._ready[row], self._model[row]
            if model[row] and drafted is not None and counts[row]:
                chosen.append(Choice(drafted, counts[row], plan.tree, 0.0 if plan.tree else worth))
            else:
                chosen.append(Choice(ready or group[0], 0 if model[row] else counts[row]))
        return chosen

    def _token_worth(self, plan: _Plan, rate: float) -> float:
        """Tokens that the time of one more token of a chain costs: of verifying it, and its share of a pass."""
        drafted = int((plan.model & (plan.counts > 0)).sum())
        if not drafted:
            return 0.0
        verify, draft = self._verify, self.policy.costs.draft
        token = float(verify[-1] - verify[0]) / max(len(verify) - 1, 1)
        # what one pass more costs, not what the first one does: catching up with the target's states is paid by then
        last = max(plan.passes, 2)
        a_pass = (draft(last, drafted) - draft(1, drafted)) / (last - 1)
        return min(max(rate * (token + a_pass / drafted), 0.0), 0.9)

    def _plans(self, rate: float | None) -> list[_Plan]:
        """The best plan of each number of passes of the draft, and the one with trees."""
        token = rate or self.running / self.plain_seconds
        token *= float(self._verify[-1] - self._verify[0]) / max(len(self._verify) - 1, 1)
        plans = []
        longest = int((self._kept_model > 0).sum(axis=1).max(initial=0)) if self.with_model else 0
        value_ready = np.maximum(self._kept_ready - token, 0.0).sum(axis=1)
        columns = np.arange(self.length)
        last, turn = self.policy.last_passes, self.policy.turn % (longest + 1)
        for passes in range(longest + 1):
            if 2 < passes < longest and abs(passes - last) > 1 and passes != turn:
                continue  # the ends, the lengths around the last one and each other in turn find the best soon
            chain = np.where(columns < passes, self._kept_model, 0.0) if passes else np.zeros_like(self._kept_ready)
            model = np.maximum(chain - token, 0.0).sum(axis=1) > value_ready
            kept = np.where(model[:, None], chain, self._kept_ready)
            plan = self._fill(kept, np.ones_like(kept, dtype=np.int64), model, passes, rate)
            if plan is not None:
                plans.append(plan)
        if self.tree is not None and self._kept_tree is not None:
            gain = self._kept_tree.sum(axis=1)
            model = np.maximum(gain - token * self.tree.nodes, 0.0) > value_ready
            kept = np.where(model[:, None], 0.0, self._kept_ready)
            sizes = np.ones_like(kept, dtype=np.int64)
            kept[model, 0], sizes[model, 0] = gain[model], self.tree.nodes
            plan = self._fill(kept, sizes, model, self.tree.depth, rate, tree=True)
            if plan is not None:
                plans.append(plan)
        return plans

    def _fill(
        self,
        kept: npt.NDArray[np.float64],
        sizes: npt.NDArray[np.int64],
        model: npt.NDArray[np.bool_],
        passes: int,
        rate: float | None,
        tree: bool = False,
    ) -> _Plan | None:
        """The best number of units of ``sizes`` tokens that add ``kept`` [rows, positions], the likeliest first."""
        gains, weights = kept.ravel(), sizes.ravel()
        order = np.argsort(-gains / weights, kind="stable")
        order = order[: int((gains > 0).sum())]
        if not len(order):
            return None
        rows = order // kept.shape[1]
        tokens = self.running + np.cumsum(gains[order])
        drafted = np.cumsum(weights[order])
        seconds = self._verify[drafted] + self._host[1]
        if passes:
            requests = np.cumsum(model[rows] & (order % kept.shape[1] == 0))
            seconds = seconds + self.policy.costs.drafts_by_requests(passes, int(requests[-1]))[requests]
        at = int(_worth(tokens, seconds, rate).argmax())
        counts = np.bincount(rows[: at + 1], weights=weights[order[: at + 1]], minlength=len(self.groups))
        return _Plan(counts.astype(np.int64), model, float(tokens[at]), float(seconds[at]), passes, tree)

    def _kept(self, candidates: Sequence[Candidate | None], positions: int, tree: bool = False) -> Any:
        """Float64 [rows, positions]: the chance that each draft token is kept; 0 where none can be."""
        kept = np.zeros((len(candidates), positions))
        rows = [row for row, one in enumerate(candidates) if one is not None]
        if not rows:
            return kept
        known = [one for one in candidates if one is not None]
        pairs = [(one.sequence, tree_source(one.source) if tree else one.source) for one in known]
        chances = self.policy.acceptance.kept(pairs)[:, :positions]
        most = np.array([positions if tree else one.most for one in known])[:, None]
        kept[rows] = np.where(np.arange(positions) < most, chances, 0.0)
        return kept


def _worth(tokens: Any, seconds: Any, rate: float | None) -> Any:
    return tokens / seconds if rate is None else tokens - rate * seconds
