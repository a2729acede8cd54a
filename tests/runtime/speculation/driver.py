"""Steps of an engine in small: blocks by the real pool, a target whose states are a function of the tokens so far.

Which drafts are accepted, and what follows them, is decided by the caller's generator, so that a target's words never
matter. Whatever a drafter does wrong with blocks shows as a wrong draft or a wrong row of its cache.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch

from runtime.blocks import BlockPool, PrefixHasher
from runtime.blocks.pool import OutOfBlocks
from runtime.scheduler.sequence import Sequence, SequenceStatus
from runtime.speculation.draft import Ask, Computed, Draft, Drafter

CAPACITY = 100


def tap_of(tokens: np.ndarray, width: int) -> torch.Tensor:
    """The target's states of the last of these tokens [width]."""
    made = torch.Generator().manual_seed(zlib.crc32(tokens.astype(np.int64).tobytes()))
    return torch.randn(width, generator=made)


@dataclass
class Live:
    sequence: Sequence
    speculates: bool = True


@dataclass
class Driver:
    """One engine.

    Attributes:
        tap_width: 0: the engine taps nothing.
        on_draft: called with each ask and what was proposed.
    """

    drafter: Drafter
    pool: BlockPool
    block_size: int
    vocab: int
    tap_width: int
    random: Random
    on_draft: Callable[[Ask, Draft | None], None] = lambda ask, draft: None
    running: list[Live] = field(default_factory=list)
    waiting: list[Live] = field(default_factory=list)
    #: samples of one prompt: their blocks may have been others' too, whatever can be found of them
    split: set[Sequence] = field(default_factory=set)
    drafted: int = 0
    made: int = 0

    def token(self) -> int:
        return self.random.randrange(self.vocab)

    def add(self, prompt: list[int], *, speculates: bool = True) -> Live:
        self.made += 1
        sequence = Sequence(
            f"s{self.made}",
            np.array(prompt, dtype=np.int64),
            capacity=CAPACITY,
            hasher=PrefixHasher(self.block_size),
            order=self.made,
        )
        live = Live(sequence, speculates)
        self.waiting.append(live)
        return live

    def admit(self) -> None:
        """Everybody whose tokens fit, on shared blocks as far as they go."""
        size = self.block_size
        for live in list(self.waiting):
            sequence = live.sequence
            digests = sequence.hasher.extend(sequence.tokens, sequence.length)[: (sequence.length - 1) // size]
            shared = self.pool.lookup(digests)
            fresh = -(-sequence.length // size) - len(shared)
            if fresh + self.pool.idle(shared) > self.pool.num_free:
                continue
            self.pool.hold(shared)
            sequence.blocks = shared + self.pool.allocate(fresh)
            sequence.computed = len(shared) * size
            sequence.published = len(shared)
            sequence.cached_tokens = sequence.computed
            sequence.status = SequenceStatus.RUNNING
            self.waiting.remove(live)
            self.running.append(live)

    def preempt(self, live: Live) -> None:
        sequence = live.sequence
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed, sequence.published = [], 0, 0
        sequence.copy_pending = False
        sequence.preemptions += 1
        sequence.status = SequenceStatus.WAITING
        self.running.remove(live)
        self.waiting.append(live)

    def finish(self, live: Live, *, leave_first: bool = False) -> None:
        sequence = live.sequence
        if leave_first:
            self.drafter.leave(sequence)
        if live in self.running:
            self.running.remove(live)
            self.pool.release(sequence.blocks)
            sequence.blocks = []
        else:
            self.waiting.remove(live)
        sequence.status = SequenceStatus.FINISHED
        if not leave_first:
            self.drafter.leave(sequence)

    def fork(self, live: Live, count: int) -> list[Live]:
        """Samples that split off a sequence whose prompt has just been computed."""
        children = []
        for sample in range(1, count + 1):
            child = live.sequence.fork(sample)
            child.status = SequenceStatus.RUNNING
            self.pool.hold(child.blocks)
            child.copy_pending = live.sequence.copy_pending = True
            child.tokens[child.length - 1] = self.token()
            children.append(Live(child, live.speculates))
        self.running += children
        self.split |= {live.sequence, *(child.sequence for child in children)}
        self.drafter.fork(live.sequence, [child.sequence for child in children])
        return children

    def step(self, *, count: int = 4, tree: bool = False, chunk: int = 1000, asked: float = 1.0) -> None:
        """One step.

        Args:
            count: most draft tokens.
            chunk: most tokens of a prompt.
            asked: how many of the decoding sequences are drafted for.
        """
        self.admit()
        copies: list[tuple[int, int]] = []
        asks: list[Ask] = []
        work: list[tuple[Live, int]] = []  # with the tokens of a chunk; 0: decodes
        for live in list(self.running):
            if live not in self.running:
                continue
            sequence = live.sequence
            if sequence.outstanding > 1:
                work.append((live, min(chunk, sequence.outstanding)))
                continue
            if not self._slot(live, copies):
                continue
            work.append((live, 0))
            if live.speculates and self.random.random() < asked:
                granted = self._grant(sequence, count)
                if granted:
                    asks.append(Ask(sequence, granted, tree=tree))
        work = [item for item in work if item[0] in self.running]
        alive = {id(live.sequence) for live, _ in work}
        asks = [ask for ask in asks if id(ask.sequence) in alive]
        self.drafter.copy_blocks(copies)
        drafts: dict[int, Draft] = {}
        for ask, draft in zip(asks, self.drafter.propose(asks), strict=True):
            self.on_draft(ask, draft)
            if draft is not None:
                assert 1 <= len(draft) <= ask.count
                drafts[id(ask.sequence)] = draft
                self.drafted += len(draft)
        self._compute(work, drafts)

    def _slot(self, live: Live, copies: list[tuple[int, int]]) -> bool:
        """A writable slot for the root, whoever has to be preempted for it."""
        sequence, size = live.sequence, self.block_size
        while True:
            try:
                if sequence.computed == len(sequence.blocks) * size:
                    sequence.blocks += self.pool.allocate(1)
                elif sequence.copy_pending:
                    number = sequence.computed // size
                    shared = sequence.blocks[number]
                    block, copied = self.pool.make_writable(shared)
                    if copied:
                        sequence.blocks[number] = block
                        copies.append((shared, block))
                sequence.copy_pending = False
                return True
            except OutOfBlocks:
                victim = self.running[-1]
                self.preempt(victim)
                if victim is live:
                    return False

    def _grant(self, sequence: Sequence, count: int) -> int:
        """Draft tokens for which there are blocks."""
        count = min(count, CAPACITY - sequence.length - 1)
        missing = -(-(sequence.length + count) // self.block_size) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self.pool.allocate(min(missing, self.pool.num_free))
        return max(0, min(count, len(sequence.blocks) * self.block_size - sequence.length))

    def _compute(self, work: list[tuple[Live, int]], drafts: dict[int, Draft]) -> None:
        """What the target would do, with drafts accepted as it comes."""
        computed: list[Computed] = []
        states: list[np.ndarray | None] = []  # the tokens up to each row's; None: of a rejected draft
        for live, chunk in work:
            sequence, start, first = live.sequence, live.sequence.computed, len(states)
            if chunk:
                states += [sequence.tokens[: p + 1].copy() for p in range(start, start + chunk)]
                computed.append(Computed(sequence, start, np.arange(first, len(states)), live.speculates))
                sequence.computed += chunk
                if sequence.computed == sequence.length:
                    sequence.append(self.token())
                continue
            draft = drafts.get(id(sequence))
            path = [0]
            rows: list[np.ndarray | None] = [None] * (1 + (0 if draft is None else len(draft)))
            rows[0] = sequence.tokens[: sequence.length].copy()
            while draft is not None and self.random.random() < 0.6:
                parents = np.arange(len(draft)) if draft.parents is None else draft.parents
                below = [node for node, parent in enumerate(parents.tolist(), 1) if parent == path[-1]]
                if not below:
                    break
                path.append(self.random.choice(below))
                sequence.append(int(draft.tokens[path[-1] - 1]))
                rows[path[-1]] = sequence.tokens[: sequence.length].copy()
            states += rows
            computed.append(Computed(sequence, start, first + np.array(path), live.speculates))
            sequence.computed += len(path)
            sequence.append(self.token())

        def taps(rows: np.ndarray) -> torch.Tensor:
            found = []
            for row in rows.tolist():
                tokens = states[row]
                assert tokens is not None, "the states of a rejected draft were read"
                found.append(tap_of(tokens, self.tap_width))
            return torch.stack(found)

        self.drafter.observe(computed, taps if self.tap_width else None)
        for live, _ in work:
            sequence = live.sequence
            full = sequence.computed // self.block_size
            digests = sequence.hasher.extend(sequence.tokens, sequence.computed)
            for number in range(sequence.published, full):
                self.pool.publish(sequence.blocks[number], digests[number])
            sequence.published = full
        for live in [live for live, _ in work if live.sequence.length >= CAPACITY - 8]:
            self.finish(live)
        self.pool.check()
