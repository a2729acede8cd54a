"""Who is drafted for in a step, by whom and how far; and what the drafters are told of it afterwards.

A step with a speculator runs in this order: the scheduler plans its decodes and asks :meth:`Speculator.choose` what is
wanted behind each, grants what tokens and blocks are there for, :meth:`Speculator.draft` makes the drafts, the target
verifies them, and :meth:`Speculator.settle` hands on what became true. See ``docs/runtime.md``.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.executors.base import Executor, StepBatch
from runtime.scheduler import Scheduler, StepPlan
from runtime.scheduler import Sequence as TokenSequence
from runtime.speculation.draft import Ask, Candidate, Choice, Computed, Draft, Drafter, ModelDrafter, Policy, TapReader
from runtime.speculation.figures import SpeculationFigures
from runtime.speculation.grammar import permitted
from runtime.speculation.shadow import Shadows
from runtime.speculation.verification import Branch, moves

if TYPE_CHECKING:
    from runtime.sample import Sample
    from runtime.sampling.guided import GuidedState

log = logging.getLogger("trtforge.runtime")

#: a parent and the samples that split off
Fork = tuple[TokenSequence, list[TokenSequence]]


class Speculator:
    """Drafters, the policy between them, and their figures; one an engine, called by the stepping thread.

    Args:
        policy: may be replaced between steps while no request is live.
        max_draft_len: most tokens of a chain.
        lookup: drafts out of the text at hand: free, and asked before the policy.
        model: drafts with a model of its own: asked for what the policy chose.
        tree_nodes: draft tokens of the tree that ``model`` makes where the policy wants one; 0: it makes none.
        taps: reads the target's tapped states of a step's rows; None: the engine taps nothing.
        tick: the clock, in seconds, of the times that the policy is told.
    """

    def __init__(
        self,
        policy: Policy,
        max_draft_len: int,
        *,
        lookup: Drafter | None = None,
        model: ModelDrafter | None = None,
        tree_nodes: int = 0,
        taps: TapReader | None = None,
        tick: Callable[[], float] = time.perf_counter,
    ) -> None:
        if lookup is None and model is None:
            raise ValueError("nobody drafts")
        self.policy = policy
        self.max_draft_len = max_draft_len
        self.lookup = lookup
        self.model = model
        self.tree_nodes = tree_nodes
        self.tick = tick
        self.figures = SpeculationFigures()
        # not a method of this object: a cycle would keep the drafters' memory until a collection
        me = weakref.ref(self)
        self.figures.policy = lambda: () if (found := me()) is None else found.policy.points()
        self._taps = taps
        #: this step's choice for each decode, and the draft where it is made already
        self._chosen: list[tuple[Choice, Draft | None] | None] = []
        self._plain: list[bool] = []
        self._guided: list[GuidedState | None] = []
        #: tokens that were asked of the drafter with weights, of a tree the levels that it made
        self._asked: dict[TokenSequence, int] = {}
        #: seconds of drafting in this step, by the wall and by the policy's clock
        self._drafting = self._drafting_ticks = 0.0
        self._shadows = Shadows()

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """Whoever drafts, the free one first."""
        return tuple(d for d in (self.lookup, self.model) if d is not None)

    def choose(self, samples: Sequence[Sample], prompt_tokens: int) -> list[int]:
        """Draft tokens wanted behind each decoding sample.

        Args:
            prompt_tokens: of prompts that could run in the same step.
        """
        self._plain = [sample.sampling.plain for sample in samples]
        self._guided = [sample.sampling.guided for sample in samples]
        self._chosen = [None] * len(samples)
        asks: list[tuple[int, Ask]] = []
        for at, sample in enumerate(samples):
            sequence = sample.sequence
            # the last token is never fed back, so what a full draft and its bonus fill is the most
            most = min(self.max_draft_len, len(sequence.tokens) - sequence.length - 1)
            if sequence.speculates and sequence.slots == 1 and most > 0:
                asks.append((at, Ask(sequence, most)))
        if not asks:
            return [0] * len(samples)
        found: Sequence[Draft | None] = [None] * len(asks)
        if self.lookup is not None:
            found = self.lookup.propose([ask for _, ask in asks])
        places, groups, ready = [], [], []
        for (at, ask), draft in zip(asks, found, strict=True):
            group = []
            guided = self._guided[at]
            if draft is not None and guided is not None:
                draft = permitted(draft, guided)
            if draft is not None:
                group.append(Candidate(ask.sequence, draft.source, len(draft), ready=True))
            if self.model is not None and self.model.ready(ask.sequence):
                group.append(Candidate(ask.sequence, self.model.name, ask.count))
            if group:
                places.append(at)
                groups.append(group)
                ready.append(draft)
        if not groups:
            return [0] * len(samples)
        choices = self.policy.choose(groups, running=len(samples), prefill_tokens=prompt_tokens)
        wanted = [0] * len(samples)
        for at, choice, draft in zip(places, choices, ready, strict=True):
            candidate = choice.candidate
            # a tree has its configured shape, however long a chain could be
            wanted[at] = min(choice.count, candidate.most) if not choice.tree else self.tree_nodes * (choice.count > 0)
            taken = draft if candidate.ready and choice.count else None
            self._chosen[at] = choice, taken
            if draft is not None and taken is None:
                self._shadows.note(candidate.sequence, draft)
        return wanted

    def draft(self, plan: StepPlan) -> None:
        """Fill ``plan.drafts`` for what was granted, and order the decodes so that equal drafts stand together."""
        if plan.copies:
            for drafter in self.drafters:
                drafter.copy_blocks(plan.copies)
        self._drafting = self._drafting_ticks = 0.0
        self._asked.clear()
        if not plan.granted:
            return
        drafts: list[Draft | None] = [None] * len(plan.decodes)
        places, asks = [], []
        for at, (sequence, count, chosen) in enumerate(zip(plan.decodes, plan.granted, self._chosen, strict=True)):
            if chosen is None or count <= 0:
                continue
            choice, ready = chosen
            if ready is not None:
                drafts[at] = ready.cut(count)
            else:
                places.append(at)
                asks.append(Ask(sequence, count, choice.tree, choice.worth))
        if asks and self.model is not None:
            started, mark = time.perf_counter(), self.tick()
            made = self.model.propose(asks)
            self._drafting, self._drafting_ticks = time.perf_counter() - started, self.tick() - mark
            self.figures.timed("draft", self._drafting)
            kinds = {draft.parents is not None for draft in made if draft is not None}
            if len(kinds) == 1:  # of chains beside trees nobody knows whose time it was
                passes = max(draft.levels() for draft in made if draft is not None)
                part = "tree" if kinds.pop() else "draft"
                self._tell(part if self.model.ordinary else "catch_up", passes, len(asks), self._drafting_ticks)
            for at, ask, draft in zip(places, asks, made, strict=True):
                if draft is None:
                    continue
                tree = draft.parents is not None
                # a tree has as many levels as there was room for; a chain may have been ended in doubt
                asked = self._asked[ask.sequence] = draft.levels() if tree else ask.count
                guided = self._guided[at]
                drafts[at] = draft if guided is None else permitted(draft, guided)
                if drafts[at] is None:
                    # no step will tell the policy that these tokens were for nothing
                    self.policy.record(ask.sequence, draft.source, 0, 0, tree=tree, asked=asked)
        if not any(draft is not None for draft in drafts):
            return
        lengths = [0 if draft is None else len(draft) for draft in drafts]
        if min(lengths) < max(lengths) or not all(self._plain):
            order = sorted(range(len(drafts)), key=lambda at: (not (self._plain[at] and lengths[at]), -lengths[at]))
            plan.decodes = [plan.decodes[at] for at in order]
            drafts = [drafts[at] for at in order]
        plan.drafts = drafts

    def timed(self, plan: StepPlan, seconds: float, in_target: float, outside: float) -> float:
        """Count the times of a step. Never raises: what the step yielded is on its way to the clients.

        Args:
            seconds: of the target, by the wall.
            in_target, outside: in the target and in the rest of the step, by ``tick``.

        Returns:
            The seconds that the drafter with weights took, by the wall.
        """
        drafted = sum(len(draft) for draft in plan.drafts if draft is not None)
        if plan.drafts:
            self.figures.timed("verify", seconds)
        if plan.decodes and not plan.chunks:
            self._tell("verify", plan.num_tokens, len(plan.decodes), in_target)
            self._tell("host", drafted, len(plan.decodes), outside - self._drafting_ticks)
        return self._drafting

    def _tell(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Times are advice: a policy that fails over them costs no answer."""
        try:
            self.policy.timed(part, tokens, requests, seconds)
        except Exception:
            log.exception("the policy did not take a step's times")

    def settle(
        self,
        plan: StepPlan,
        batch: StepBatch,
        branches: Sequence[Branch],
        scheduler: Scheduler,
        executor: Executor,
        forks: Sequence[Fork],
    ) -> None:
        """After the step's tokens were taken: keep what is true of the caches, count, and tell the drafters.

        Args:
            branches: those of ``plan.decodes`` first; empty where nothing was drafted.
            forks: parents and the samples that split off in this step.
        """
        computed: list[Computed] = []
        starts = batch.query_start.tolist()
        if plan.drafts:
            decoded = branches[: len(plan.decodes)]
            bases = [sequence.computed for sequence in plan.decodes]
            moved = moves(decoded, batch.block_table, bases)
            if moved is not None:
                executor.move_rows(*moved)
            kept = _kept(decoded, starts)
            end = 0
            for branch, base in zip(decoded, bases, strict=True):
                sequence, begin = branch.sample.sequence, end
                if branch.draft is None:
                    end += 1
                    base -= 1  # committed already
                else:
                    end += branch.emitted
                    self._count(branch)
                    scheduler.advance(sequence)
                computed.append(Computed(sequence, base, kept[begin:end], sequence.speculates))
            self.figures.skipped(sum(branch.draft is None for branch in decoded))
        else:
            self.figures.skipped(len(plan.decodes))
            rows = np.arange(len(plan.decodes), dtype=np.int64)
            for at, sequence in enumerate(plan.decodes):
                computed.append(Computed(sequence, sequence.computed - 1, rows[at : at + 1], sequence.speculates))
        if plan.granted:
            scheduler.give_back(plan.decodes)
        for at, chunk in enumerate(plan.chunks, len(plan.decodes)):
            rows = np.arange(starts[at], starts[at + 1], dtype=np.int64)
            computed.append(Computed(chunk.sequence, chunk.start, rows, chunk.sequence.speculates))
        for drafter in self.drafters:
            drafter.observe(computed, self._taps)
            for parent, children in forks:
                drafter.fork(parent, children)
        self._shadows.settle(self.policy)

    def _count(self, branch: Branch) -> None:
        sample, draft, accepted = branch.sample, branch.draft, branch.accepted
        assert draft is not None
        sample.num_draft_tokens += len(draft)
        sample.num_accepted_tokens += accepted
        self.figures.verified(draft, accepted)
        # where an answer ended inside its draft, what stood behind the end says nothing of the drafter
        over = branch.emitted == accepted
        judged = accepted if over else draft.levels()
        if judged:
            tree = draft.parents is not None
            asked = None if over else self._asked.get(sample.sequence)
            self.policy.record(sample.sequence, draft.source, judged, accepted, tree=tree, asked=asked)

    def leave(self, sequence: TokenSequence) -> None:
        """The sequence ended. Never raises: an answer is out, and a step that failed ends its requests through here."""
        keepers: tuple[Drafter | Shadows | Policy, ...] = (*self.drafters, self._shadows, self.policy)
        for keeper in keepers:
            try:
                keeper.leave(sequence)
            except Exception:
                log.exception("%s kept a sequence that ended", type(keeper).__name__)

    def describe(self) -> dict[str, Any]:
        """Who drafts, and what the policy makes of it; JSON-able."""
        return {
            "max_draft_len": self.max_draft_len,
            "drafters": [drafter.describe() for drafter in self.drafters],
            "policy": self.policy.explain(),
        }

    def close(self) -> None:
        """Release what the drafters hold."""
        for drafter in self.drafters:
            drafter.close()


def _kept(branches: Sequence[Branch], starts: Sequence[int]) -> npt.NDArray[np.int64]:
    """int64, the rows that each branch's sequence keeps of the step, one branch after the other."""
    rows: list[int] = []
    for branch, start in zip(branches, starts, strict=False):
        if branch.draft is None:
            rows.append(start)
        else:
            rows += [start + node for node in branch.path[: branch.emitted]]
    return np.array(rows, dtype=np.int64)
