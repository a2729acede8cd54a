"""In-flight batching: what runs in the next step.

Policy, in the order of a step:

1. Decodes first, one token each, best rank first: an admitted request never waits for another's prefill.
2. Drafts behind decodes, where somebody drafts: at most half of what is left of ``max_num_tokens`` as long as prompts
   could use the other half. Their blocks are taken last, of those that are free: a draft preempts nobody and keeps
   nobody from being admitted, it is cut instead.
3. Prefills already admitted take what is left, best rank first, in chunks.
4. Waiting sequences are admitted, best rank first and without overtaking, while a row is free, tokens are
   left and the pool has blocks for all of their known tokens plus one for every running sequence. Overtaking
   would starve long prompts.

Rank is (effective priority, arrival). A waiting sequence's effective priority rises by one for every
``aging_seconds`` it waits, so no stream of urgent requests holds it off for ever; the rank it is admitted
with stays, so that what was gained by waiting is not lost to the next preemption.

When a decode finds no free block the lowest-ranked running sequence (of equals the latest) gives all of its
blocks back and is recomputed later, helped by whatever the prefix cache still holds. The best-ranked one
is never a victim and every admitted sequence fits the pool alone (checked when it is added), so each
step makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.blocks.pool import BlockPool, OutOfBlocks
from runtime.executors.base import StepBatch
from runtime.scheduler.batch import BatchTable, Chunk
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.sequence import Sequence, SequenceStatus

if TYPE_CHECKING:
    from runtime.speculation.draft import Draft

#: decoding sequences and the prompt tokens that could run beside them → draft tokens wanted for each
Wanted = Callable[[list[Sequence], int], list[int]]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Budgets of a step and of a sequence.

    Attributes:
        max_batch_size: most sequences in a step.
        max_num_tokens: most tokens in a step.
        max_seq_len: longest sequence in tokens.
        block_size: S.
        aging_seconds: waiting time worth one level of priority.
        max_prefill_tokens: most prefill tokens in a step that also decodes; None: the whole budget. Lower
            values smooth inter-token latency at the cost of time to first token.
        max_logit_rows: most rows of logits in a step, of which every draft token takes one; None: no such limit.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    block_size: int
    aging_seconds: float = 10.0
    max_prefill_tokens: int | None = None
    max_logit_rows: int | None = None

    @property
    def max_running(self) -> int:
        """Most running sequences: each must be able to decode in every step."""
        return min(self.max_batch_size, self.max_num_tokens)


@dataclass(slots=True)
class StepPlan:
    """What a step runs: decodes, prefill chunks and the copies before them.

    Attributes:
        granted: draft tokens that each decode has room and blocks for; empty: none was wanted.
        drafts: what was drafted for each decode; empty: nothing.
        made: when it was made, on the engine's clock: the step begins then.
    """

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    drafts: list[Draft | None] = field(default_factory=list)
    made: float = 0.0

    @property
    def num_tokens(self) -> int:
        drafted = sum(len(draft) for draft in self.drafts if draft is not None)
        return len(self.decodes) + drafted + sum(c.count for c in self.chunks)

    def sampled(self) -> list[Sequence]:
        """Sequences that yield a row of logits, in the order of the rows."""
        return self.decodes + [c.sequence for c in self.chunks if c.last]


class Scheduler:
    """Queues, rows and blocks of all live sequences. Not thread-safe."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.waiting = WaitingQueue(config.aging_seconds)
        self.running: list[Sequence] = []  # best rank first
        blocks = -(-config.max_seq_len // config.block_size)
        self.table = BatchTable(config.max_running, blocks)
        self._rows_reserved = 0
        self.preemptions = 0
        self.recomputed = 0  # tokens that are computed again after a preemption
        self.prefix_queries = 0
        self.prefix_hits = 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever state it is, and free what it held."""
        if sequence.status is SequenceStatus.RUNNING:
            self._leave(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def fork(self, parent: Sequence, samples: Iterable[int]) -> list[Sequence]:
        """Running siblings of ``parent`` that share its blocks; its reserved rows become theirs."""
        children = []
        for sample in samples:
            child = parent.fork(sample)
            self.pool.hold(child.blocks)
            child.copy_pending = parent.copy_pending = True
            self._rows_reserved += 1
            self._enter(child)
            children.append(child)
        self._rows_reserved -= parent.slots - 1
        parent.slots = 1
        return children

    def schedule(self, now: float, wanted: Wanted | None = None) -> StepPlan:
        """Choose the next step's work and take the blocks for it.

        Args:
            now: the engine's clock, seconds.
            wanted: asked once for the draft tokens that the decodes want; None: nobody drafts.
        """
        plan = StepPlan(made=now)
        self._plan_decodes(plan)
        budget = self.config.max_num_tokens - len(plan.decodes)
        if wanted is not None and plan.decodes:
            budget -= self._grant(plan, budget, wanted)
        if plan.decodes and self.config.max_prefill_tokens is not None:
            budget = min(budget, self.config.max_prefill_tokens)
        budget = self._plan_prefills(plan, budget)
        # Admitting right after a preemption would hand the victim's blocks to somebody of lower rank.
        if not plan.preempted:
            self._admit(plan, budget, now)
        for at, (sequence, count) in enumerate(zip(plan.decodes, plan.granted, strict=False)):
            if count:
                plan.granted[at] = self._take_draft_blocks(sequence, count)
        return plan

    def assemble(self, plan: StepPlan) -> StepBatch:
        return self.table.assemble(plan.decodes, plan.chunks, plan.copies, self.config.block_size, plan.drafts)

    def commit(self, plan: StepPlan) -> None:
        """Record that the step ran: lengths move on and blocks that became full can be shared.

        A decode with a draft waits for :meth:`advance`: what it computed is known once that was verified.
        """
        size, computed = self.config.block_size, self.table.computed
        for at, sequence in enumerate(plan.decodes):
            if plan.drafts and plan.drafts[at] is not None:
                continue
            sequence.computed += 1
            computed[sequence.row] = sequence.computed
            if sequence.computed % size == 0:
                self._publish(sequence)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.count
            computed[sequence.row] = sequence.computed
            self._publish(sequence)

    def advance(self, sequence: Sequence) -> None:
        """Record what a decode with a draft has become: all of its tokens but the newest are computed."""
        computed = sequence.length - 1
        sequence.computed = computed
        self.table.computed[sequence.row] = computed
        if computed >= (sequence.published + 1) * self.config.block_size:
            self._publish(sequence)

    def give_back(self, sequences: Iterable[Sequence]) -> None:
        """Free the blocks that only a draft needed, one that was refused or never made."""
        size = self.config.block_size
        for sequence in sequences:
            keep = -(-sequence.computed // size)
            if len(sequence.blocks) > keep:
                self.pool.release(self.table.drop_blocks(sequence, keep))

    def append(self, sequence: Sequence, token: int) -> None:
        """Add a generated token to a running sequence."""
        sequence.append(token)
        self.table.next_token[sequence.row] = token

    def extend(self, sequence: Sequence, tokens: list[int]) -> None:
        """Add generated tokens, at least one, to a running sequence."""
        sequence.extend(tokens)
        self.table.next_token[sequence.row] = tokens[-1]

    def _plan_decodes(self, plan: StepPlan) -> None:
        size, running = self.config.block_size, self.running
        position = 0
        while position < len(running):
            sequence = running[position]
            if sequence.length - sequence.computed != 1:
                position += 1
                continue
            needs_slot = sequence.length > len(sequence.blocks) * size or sequence.copy_pending
            if needs_slot and not self._make_room(sequence, plan):
                break  # it was the lowest-ranked itself and is gone
            plan.decodes.append(sequence)
            position += 1

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """A writable slot for the next token; False when the sequence itself had to be preempted."""
        while True:
            try:
                self._take_slot(sequence, plan)
            except OutOfBlocks:
                victim = self.running[-1]
                self._preempt(victim, plan)
                if victim is sequence:
                    return False
            else:
                return True

    def _take_slot(self, sequence: Sequence, plan: StepPlan) -> None:
        if sequence.computed == len(sequence.blocks) * self.config.block_size:
            self.table.add_block(sequence, self.pool.allocate(1)[0])
        elif sequence.copy_pending:
            number = sequence.computed // self.config.block_size
            shared = sequence.blocks[number]
            block, copied = self.pool.make_writable(shared)
            if copied:
                self.table.replace_block(sequence, number, block)
                plan.copies.append((shared, block))
        sequence.copy_pending = False

    def _grant(self, plan: StepPlan, room: int, wanted: Wanted) -> int:
        """Room in the step for drafts, best rank first; the tokens granted in all."""
        prompts = self._prompt_tokens()
        plan.granted = wanted(plan.decodes, prompts)
        if not any(plan.granted):
            plan.granted = []
            return 0
        room = max(room // 2, room - prompts)
        if self.config.max_logit_rows is not None:
            # a row each is kept for all that run: any of them may finish its prompt in this step
            room = max(0, min(room, self.config.max_logit_rows - self.config.max_running))
        given = room
        for at, sequence in enumerate(plan.decodes):
            count = min(plan.granted[at], room, self.config.max_seq_len - sequence.length)
            plan.granted[at] = count = max(count, 0)
            room -= count
        return given - room

    def _prompt_tokens(self) -> int:
        """Prompt tokens that could run in the next step beside the decodes, at most a step's."""
        most = self.config.max_num_tokens
        tokens = sum(s.outstanding for s in self.running if s.outstanding > 1)
        if self._rows_reserved < self.config.max_running:
            for sequence in self.waiting:
                if tokens >= most:
                    break
                tokens += sequence.length
        return min(tokens, most)

    def _take_draft_blocks(self, sequence: Sequence, count: int) -> int:
        """Blocks for ``count`` tokens behind the root; how many tokens fit into those that were free."""
        size = self.config.block_size
        missing = self.blocks_for(sequence.length + count) - len(sequence.blocks)
        missing = min(missing, self.pool.num_free)
        if missing > 0:
            for block in self.pool.allocate(missing):
                self.table.add_block(sequence, block)
        return min(count, len(sequence.blocks) * size - sequence.length)

    def _plan_prefills(self, plan: StepPlan, budget: int) -> int:
        for sequence in self.running:
            # One token outstanding: planned as a decode.
            if sequence.length - sequence.computed > 1:
                if budget <= 0:
                    break
                budget -= self._chunk(sequence, budget, plan)
        return budget

    def _chunk(self, sequence: Sequence, budget: int, plan: StepPlan) -> int:
        outstanding = sequence.length - sequence.computed
        count = min(outstanding, budget)
        plan.chunks.append(Chunk(sequence, sequence.computed, count, count == outstanding))
        return count

    def _admit(self, plan: StepPlan, budget: int, now: float) -> None:
        while budget > 0 and self._rows_reserved < self.config.max_running:
            sequence = self.waiting.best(now)
            if sequence is None or self._rows_reserved + sequence.slots > self.config.max_running:
                return
            if not self._take_blocks(sequence):
                return
            sequence.rank = self.waiting.rank(sequence, now)
            self.waiting.remove(sequence)
            self._rows_reserved += sequence.slots
            self._enter(sequence)
            plan.admitted.append(sequence)
            budget -= self._chunk(sequence, budget, plan)

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Blocks for all known tokens, as many as possible from the prefix cache; False when too few are free."""
        digests: list[bytes] = []
        if self.pool.prefix_cache:
            # The last token is always computed: its logits are wanted.
            whole = (sequence.length - 1) // self.config.block_size
            digests = sequence.hasher.extend(sequence.tokens, sequence.length)[:whole]
        shared = self.pool.lookup(digests)
        fresh = self.blocks_for(sequence.length) - len(shared)
        # One block in reserve for every running sequence: admitting into the last blocks would
        # preempt somebody a few tokens later. An empty engine admits whatever fits.
        reserve = len(self.running)
        if fresh + self.pool.idle(shared) + reserve > self.pool.num_free:
            return False
        self.pool.hold(shared)
        sequence.blocks = shared + self.pool.allocate(fresh)
        sequence.computed = len(shared) * self.config.block_size
        sequence.published = len(shared)
        self.prefix_queries += sequence.length
        self.prefix_hits += sequence.computed
        self.recomputed += max(0, sequence.lost - sequence.computed)
        sequence.lost = 0
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        return True

    def _enter(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        self.table.enter(sequence)
        insort(self.running, sequence, key=lambda s: s.rank)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.table.leave(sequence)
        self._rows_reserved -= sequence.slots
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        self._leave(sequence)
        sequence.lost = max(sequence.lost, sequence.computed)
        sequence.computed = sequence.published = 0
        sequence.copy_pending = False
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.add(sequence)
        plan.preempted.append(sequence)

    def _publish(self, sequence: Sequence) -> None:
        if not self.pool.prefix_cache:
            return
        full = sequence.computed // self.config.block_size
        if full > sequence.published:
            digests = sequence.hasher.extend(sequence.tokens, sequence.computed)
            for number in range(sequence.published, full):
                self.pool.publish(sequence.blocks[number], digests[number])
            sequence.published = full
