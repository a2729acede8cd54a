"""In any order of adding, stepping, preempting, forking and ending: rows that are called true are true."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runtime.blocks import BlockPool
from runtime.speculation import eagle
from runtime.speculation.draft import Ask, Draft
from runtime.speculation.draft_model import DraftModelDrafter
from runtime.speculation.draft_rows import DraftRows
from runtime.speculation.eagle import EagleDrafter
from runtime.speculation.reference import Eagle3Reference
from runtime.speculation.trees import TreeDrafting
from tests.runtime.speculation.driver import Driver
from tests.runtime.speculation.paged_head import LIMITS, PagedHead, head_of
from tests.runtime.speculation.truth import RowCheck
from tests.support.simulation import SimulatedExecutor, _cells
from tests.trtforge.drafting.checkpoints import VOCAB

SIZE = 4
STEMS = [[int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, 30)] for seed in (1, 2)]


class RecordingPool(BlockPool):
    """Knows the tokens of every block that can be found."""

    def __init__(self, num_blocks: int, *, prefix_cache: bool = True) -> None:
        super().__init__(num_blocks, prefix_cache=prefix_cache)
        self.contents: dict[bytes, np.ndarray] = {}


class DraftRowsMachine(RuleBasedStateMachine):
    reference: Eagle3Reference

    @initialize(blocks=st.integers(12, 40), seed=st.integers(0, 2**16), prefix_cache=st.booleans())
    def start(self, blocks: int, seed: int, prefix_cache: bool) -> None:
        self.pool = RecordingPool(blocks, prefix_cache=prefix_cache)
        self.drafter, tap_width = self.build(blocks)
        self.driver = Driver(self.drafter, self.pool, SIZE, VOCAB, tap_width, Random(seed), self.look)

    def build(self, blocks: int) -> tuple[Any, int]:
        self.head = PagedHead(self.reference, num_blocks=blocks, block_size=SIZE)
        self.check = RowCheck(self.head)
        tree = TreeDrafting.dynamic(depth=3, top_k=2, total=6)
        return EagleDrafter(self.head, tree=tree), self.head.tap_width

    def look(self, ask: Ask, draft: Draft | None) -> None:
        if draft is not None:
            assert draft.confidence is not None and np.isfinite(draft.confidence).all(), "a draft read unwritten rows"

    @rule(stem=st.sampled_from(STEMS), kept=st.integers(0, 22), own=st.integers(1, 9), speculates=st.booleans())
    def add(self, stem: list[int], kept: int, own: int, speculates: bool) -> None:
        if len(self.driver.running) + len(self.driver.waiting) < LIMITS.max_batch_size - 3:
            tail = [self.driver.token() for _ in range(own)]
            self.driver.add([*stem[:kept], *tail], speculates=speculates)

    @rule(
        count=st.integers(1, 6),
        tree=st.booleans(),
        chunk=st.sampled_from([3, 7, 1000]),
        asked=st.sampled_from([0.0, 0.5, 1.0]),
        samples=st.sampled_from([0, 0, 1, 2]),
    )
    def step(self, count: int, tree: bool, chunk: int, asked: float, samples: int) -> None:
        before = [live for live in self.driver.running if live.sequence.outstanding > 1] + self.driver.waiting
        self.driver.step(count=count, tree=tree, chunk=chunk, asked=asked)
        for live in before:
            sequence = live.sequence
            first = live in self.driver.running and sequence.computed == sequence.prompt_length
            if samples and first and len(self.driver.running) + samples <= LIMITS.max_batch_size:
                self.driver.fork(live, samples)

    @rule(which=st.integers(0, 7))
    def preempt(self, which: int) -> None:
        if self.driver.running:
            self.driver.preempt(self.driver.running[which % len(self.driver.running)])

    @rule(which=st.integers(0, 7), leave_first=st.booleans())
    def finish(self, which: int, leave_first: bool) -> None:
        lives = [*self.driver.running, *self.driver.waiting]
        if lives:
            self.driver.finish(lives[which % len(lives)], leave_first=leave_first)

    @invariant()
    def rows_are_true(self) -> None:
        if not hasattr(self, "driver"):
            return
        for live in [*self.driver.running, *self.driver.waiting]:
            sequence = live.sequence
            for number, digest in enumerate(sequence.hasher.digests):
                self.pool.contents[digest] = sequence.tokens[: (number + 1) * SIZE].copy()
        self.compare()

    def compare(self) -> None:
        self.check.all(self.drafter._rows, self.driver, self.pool.contents)

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "driver"):
            return
        rows = self.drafter._rows
        live = {live.sequence for live in [*self.driver.running, *self.driver.waiting]}
        assert set(rows.tracks) <= live
        self.count(rows)

    def count(self, rows: DraftRows) -> None:
        left = self.drafter._left
        assert len(rows.table) - len(rows._free) == len(rows.tracks) + len(left)
        waiting = [row for track in [*rows.tracks.values(), *left] for row in track.pending]
        assert len(waiting) == len(set(waiting)) == self.drafter._pending.in_use


class DraftModelMachine(DraftRowsMachine):
    """The same with a draft model: its rows are hashes of token and position, its drafts hang on the whole context."""

    def build(self, blocks: int) -> tuple[Any, int]:
        self.model = SimulatedExecutor(num_blocks=blocks, block_size=SIZE, vocab_size=VOCAB, limits=LIMITS)
        return DraftModelDrafter(self.model, vocab_size=VOCAB), 0

    def look(self, ask: Ask, draft: Draft | None) -> None:
        known = ask.sequence.tokens[: ask.sequence.length].tolist()
        if draft is None:
            # not before anything of it was computed
            assert ask.sequence not in self.drafter._rows.tracks or not self.drafter.ready(ask.sequence)
        else:
            assert draft.tokens.tolist() == self.model.greedy(known, len(draft))

    def compare(self) -> None:
        for sequence, track in self.drafter._rows.tracks.items():
            if sequence.blocks and track.preemptions == sequence.preemptions:
                self.rows(sequence.blocks, sequence.tokens, min(track.rows, sequence.computed))
        for digest, tokens in self.pool.contents.items():
            for block in self.pool.lookup([digest]):
                blocks = [block] * (len(tokens) // SIZE)
                first = len(tokens) - SIZE
                self.rows(blocks, tokens, first + self.drafter._rows.true_rows[block], first)

    def rows(self, blocks: list[int], tokens: np.ndarray, end: int, begin: int = 0) -> None:
        for p in range(begin, end):
            found = self.model.pool[blocks[p // SIZE], p % SIZE]
            assert found == _cells(tokens[p : p + 1], np.array([p]))[0], f"position {p} is not true"

    def count(self, rows: DraftRows) -> None:
        assert len(rows.table) - len(rows._free) == len(rows.tracks)
        assert set(self.drafter._guessed) <= set(rows.tracks.values())


@pytest.fixture(scope="module")
def reference() -> Eagle3Reference:
    with tempfile.TemporaryDirectory() as folder:
        return head_of(Path(folder) / "head")


@pytest.mark.parametrize("flush_rows", [4, 64])
def test_rows_called_true_are_true(
    reference: Eagle3Reference, flush_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "FLUSH_ROWS", flush_rows)
    DraftRowsMachine.reference = reference
    rounds = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(DraftRowsMachine, settings=rounds)


def test_rows_of_a_draft_model_called_true_are_true() -> None:
    rounds = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(DraftModelMachine, settings=rounds)


def test_the_check_sees_a_wrong_row(reference: Eagle3Reference) -> None:
    head = PagedHead(reference, num_blocks=20, block_size=SIZE)
    drafter = EagleDrafter(head)
    driver = Driver(drafter, BlockPool(20), SIZE, VOCAB, head.tap_width, Random(1))
    live = driver.add(STEMS[0][:10])
    driver.step()
    driver.step(count=2)
    check = RowCheck(head)
    assert check.all(drafter._rows, driver, {}) >= 8
    head.keys["layers.0.self_attn"][live.sequence.blocks[1], 1] += 0.01
    with pytest.raises(AssertionError, match="position 5"):
        check.all(drafter._rows, driver, {})
