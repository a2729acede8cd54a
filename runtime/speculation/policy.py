"""Who is drafted for in a step, by whom, and how far: what yields most tokens for the time it costs.

Each step weighs drafts over the whole batch. The n-th draft token of a sequence adds the chance that it is kept; what
it costs is its share of the target's step (by all tokens of the step, so that a kernel that jumps between two sizes is
seen) and of the draft's passes (as many as the longest chain). See :mod:`runtime.speculation.planning`.

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

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.acceptance import Acceptance, tree_source
from runtime.speculation.costs import StepCosts
from runtime.speculation.draft import Candidate, Choice, Point, Policy
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ngram import sources_of
from runtime.speculation.overrides import Overrides
from runtime.speculation.planning import Plan, Step
from trtforge.drafting.record import DraftPolicy, DynamicTree, SpeculationRecord, StaticTree
from trtforge.ground.rounds import best_length

#: time that drafts of unknown worth may cost at most: where nothing is drafted and a little more acceptance would make
#: it pay, where drafts are made anyway, and where it would take much more to make them pay
PROBE_SHARE, PROBE_SHARE_DRAFTING, PROBE_SHARE_FAR = 0.01, 0.006, 0.004
#: probes that can be saved up for
_PROBES_SAVED = 2.0
#: further steps of the same sequences for which a plan holds that drafts nothing, and one that drafts
_HOLDS, _HOLDS_DRAFTING = 15, 5
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
class _Held:
    """A plan that holds for steps to come: for which batch and length, the share of time for probes, and steps left."""

    key: tuple[int, int]
    plan: Plan
    choices: list[Choice]
    share: float
    left: int


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
        self._held: _Held | None = None
        #: passes of the draft in the last step's plan
        self._last_passes = 0

    # -- choosing ------------------------------------------------------------------------------------

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        """See :class:`~runtime.speculation.draft.Policy`."""
        self._overrides.step()
        self.acceptance.step()
        self._counts.steps += 1
        length = self._overrides.length(running, self.max_draft_len)
        if length <= 0 or not candidates:
            return [Choice(group[0], 0) for group in candidates]
        running = max(running, len(candidates))
        self._probing = 0.0
        held = None if prefill_tokens else self._held_for(candidates, running, length)
        if held is not None:
            self._count(held)
            return held
        step = Step(
            candidates,
            length,
            running,
            prefill_tokens,
            costs=self.costs,
            acceptance=self.acceptance,
            tree=self._tree if length == self.max_draft_len else None,
        )
        rate = self._rate(step, prefill_tokens)
        last = self._last_passes
        plan = step.best(rate, last=last, turn=self._counts.steps)
        self._last_passes = plan.passes
        if not prefill_tokens:
            self._went(step.running, plan)
        choices = step.choices(plan, rate)
        if plan.counts.any():
            share, steps = PROBE_SHARE_DRAFTING, _HOLDS_DRAFTING
        else:
            share, steps = PROBE_SHARE if step.nearly_pays(rate) else PROBE_SHARE_FAR, _HOLDS
        self._held = None if prefill_tokens else _Held((running, length), plan, list(choices), share, steps)
        nearly = share == PROBE_SHARE
        other = step.for_everybody(rate, last=last, turn=self._counts.steps) if nearly else None
        if other is not None and self._affords(step, plan, other, rate):
            choices = step.choices(other, rate)
        else:
            self._probe(step, plan, choices, share)
        self._count(choices)
        return choices

    def _affords(self, step: Step, plan: Plan, other: Plan, rate: float) -> bool:
        """Whether what was saved up pays for the plan that drafts for everybody, where none should by a little.

        It loses little, and tells what a step of that size really takes, which a single probe does not.
        """
        drafted = other.drafted
        if not drafted or (step.tree is not None and self._counts.probes % 2):
            return False
        loss = other.seconds - plan.seconds - (other.tokens - plan.tokens) / rate
        if self._credit < loss:
            return False
        self._credit -= max(loss, 0.0)
        self._probing = self.costs.draft(other.passes, drafted, other.tree)
        self._counts.probes += 1
        return True

    def _held_for(self, candidates: Sequence[Sequence[Candidate]], running: int, length: int) -> list[Choice] | None:
        """The last plan's choices where they are good for this step too, since planning takes time as well.

        What lies ready differs from step to step; what a drafter with weights is worth for the same sequences hardly.
        """
        held = self._held
        if held is None or not held.left or held.key != (running, length) or len(held.choices) != len(candidates):
            return None
        choices = []
        for choice, group in zip(held.choices, candidates, strict=True):
            candidate = group[0]
            if len(group) > 1 or candidate.ready or candidate.sequence is not choice.candidate.sequence:
                return None
            count = choice.count if choice.tree else min(choice.count, candidate.most)
            choices.append(Choice(candidate, count, choice.tree, choice.worth))
        held.left -= 1
        self._credit += held.share * held.plan.seconds
        self._went(running, held.plan)
        return choices

    def _went(self, running: int, plan: Plan) -> None:
        """Count a step without prompts into the going rate."""
        self._rates.setdefault(running, _Rate()).add(plan.tokens, plan.seconds / math.exp(self.costs.scale))

    def _rate(self, step: Step, prefill_tokens: int) -> float:
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

    def _probe(self, step: Step, plan: Plan, choices: list[Choice], share: float) -> None:
        """Spend what was saved up, ``share`` of the time, on a draft that the plan has not: to learn of it."""
        probe = self._unasked(step, plan, choices) or self._stretched(step, choices)
        if probe is None:
            return
        row, choice, levels = probe
        drafted = plan.drafted
        new = not choice.candidate.ready and not (choices[row].count and not choices[row].candidate.ready)
        tokens = int(plan.counts.sum()) + choice.count - choices[row].count
        passes = max(levels, plan.passes) if not choice.candidate.ready else plan.passes
        tree = choice.tree or plan.tree
        cost = max(step.seconds(tokens, passes, drafted + new, tree) - plan.seconds, 0.0)
        if not choice.candidate.ready:
            # two lengths' measured times may say that the longer one is free: it costs its share of the drafting
            cost = max(cost, self.costs.draft(levels, drafted + new, tree) / levels)
        self._credit = min(self._credit + share * plan.seconds, _PROBES_SAVED * cost)
        if self._credit < cost:
            return
        self._credit -= cost
        if new and not drafted:
            self._probing = self.costs.draft(levels, 1, choice.tree)
        self._probed[choice.candidate.sequence] = self._counts.steps
        self._counts.probes += 1
        choices[row] = choice

    def _unasked(self, step: Step, plan: Plan, choices: Sequence[Choice]) -> tuple[int, Choice, int] | None:
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

    def _stretched(self, step: Step, choices: Sequence[Choice]) -> tuple[int, Choice, int] | None:
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

    # -- learning ------------------------------------------------------------------------------------

    def record(
        self,
        sequence: TokenSequence,
        source: str,
        drafted: int,
        accepted: int,
        *,
        tree: bool,
        asked: int | None = None,
    ) -> None:
        """See :class:`~runtime.speculation.draft.Policy`."""
        if drafted:
            self._overrides.verified(drafted, accepted)
        if tree and self._tree is not None:
            self.acceptance.record(sequence, tree_source(source), min(drafted, self._tree.depth), accepted, asked)
        else:
            self.acceptance.record(sequence, source, drafted, accepted, asked)

    def learn(self, sequence: TokenSequence, source: str, drafted: int, accepted: int) -> None:
        """A draft that was not verified, held against what was written."""
        self.acceptance.record(sequence, source, drafted, accepted)

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """See :class:`~runtime.speculation.draft.Policy`."""
        if part in ("draft", "tree", "catch_up") and self._probing:
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
