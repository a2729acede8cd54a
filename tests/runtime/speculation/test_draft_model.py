"""Drafts of an ordinary model: what it would say itself, and no row computed twice."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from runtime.blocks import BlockPool
from runtime.executors.base import StepBatch
from runtime.speculation.draft import Ask, Computed, Draft
from runtime.speculation.draft_model import DraftModelDrafter
from tests.runtime.speculation.driver import Driver
from tests.runtime.speculation.paged_head import LIMITS
from tests.support.simulation import SimulatedExecutor

SIZE, VOCAB = 4, 40


class Recorded(SimulatedExecutor):
    """Keeps the batches that it ran."""

    def __init__(self, **options: Any) -> None:
        super().__init__(block_size=SIZE, limits=LIMITS, **options)
        self.batches: list[StepBatch] = []

    def execute(self, batch: StepBatch) -> np.ndarray:
        self.batches.append(batch)
        return super().execute(batch)


def bench(model_vocab: int = VOCAB, blocks: int = 60) -> tuple[Recorded, DraftModelDrafter, Driver]:
    model = Recorded(num_blocks=blocks, vocab_size=model_vocab)
    drafter = DraftModelDrafter(model, vocab_size=VOCAB)

    def look(ask: Ask, draft: Draft | None) -> None:
        known = ask.sequence.tokens[: ask.sequence.length].tolist()
        if draft is not None and model_vocab == VOCAB:
            assert draft.tokens.tolist() == model.greedy(known, len(draft))

    return model, drafter, Driver(drafter, BlockPool(blocks), SIZE, VOCAB, 0, Random(4), look)


def accept(driver: Driver, drafter: DraftModelDrafter, sequence: Any, draft: Draft, count: int, bonus: int) -> None:
    """The target took the first ``count`` tokens, and says ``bonus`` behind them."""
    start = sequence.computed
    for token in draft.tokens[:count].tolist():
        sequence.append(token)
    sequence.append(bonus)
    sequence.computed += 1 + count
    drafter.observe([Computed(sequence, start, np.arange(1 + count))], None)


@pytest.mark.parametrize(("accepted", "fed"), [(0, 1), (2, 1), (3, 1), (4, 2)])
def test_rows_of_accepted_tokens_are_not_computed_again(accepted: int, fed: int) -> None:
    model, drafter, driver = bench()
    sequence = driver.add([5, 6, 7, 8, 9, 10]).sequence
    driver.step(asked=0.0)
    sequence.blocks += driver.pool.allocate(5)
    draft = drafter.propose([Ask(sequence, 4)])[0]
    assert draft is not None and len(draft) == 4
    # the prompt's rows and the root's, then one row a further token: the last has none
    assert [batch.num_tokens for batch in model.batches] == [7, 1, 1, 1]
    model.batches.clear()
    accept(driver, drafter, sequence, draft, accepted, bonus=(int(draft.tokens[min(accepted, 3)]) + 1) % VOCAB)
    again = drafter.propose([Ask(sequence, 2)])[0]
    assert again is not None
    assert again.tokens.tolist() == model.greedy(sequence.tokens[: sequence.length].tolist(), 2)
    assert model.batches[0].num_tokens == fed


def test_a_draft_behind_a_prompt_is_no_ordinary_one() -> None:
    """What it takes is not what a draft of that length costs."""
    _, drafter, driver = bench()
    sequence = driver.add(list(range(5, 45))).sequence
    driver.step(asked=0.0)
    sequence.blocks += driver.pool.allocate(5)
    draft = drafter.propose([Ask(sequence, 2)])[0]
    assert draft is not None and not drafter.ordinary
    accept(driver, drafter, sequence, draft, 1, bonus=7)
    assert drafter.propose([Ask(sequence, 2)])[0] is not None and drafter.ordinary


def test_a_draft_that_was_not_verified_leaves_nothing_true() -> None:
    model, drafter, driver = bench()
    sequence = driver.add([5, 6, 7, 8, 9]).sequence
    driver.step(asked=0.0)
    sequence.blocks += driver.pool.allocate(2)
    first = drafter.propose([Ask(sequence, 3)])[0]
    again = drafter.propose([Ask(sequence, 3)])[0]
    assert first is not None and again is not None and again.tokens.tolist() == first.tokens.tolist()
    accept(driver, drafter, sequence, Draft(np.array([1, 2]), "ngram"), 2, 3)
    third = drafter.propose([Ask(sequence, 2)])[0]
    assert third is not None
    assert third.tokens.tolist() == model.greedy(sequence.tokens[: sequence.length].tolist(), 2)


def test_a_draft_ends_with_the_blocks() -> None:
    _, drafter, driver = bench()
    sequence = driver.add([1, 2, 3, 4, 5]).sequence  # the root takes slot 5: two are left
    driver.step(asked=0.0)
    draft = drafter.propose([Ask(sequence, 9)])[0]
    assert draft is not None and len(draft) == 3


def test_who_shares_blocks_computes_none_of_their_rows_again() -> None:
    model, drafter, driver = bench()
    stem = list(range(12))
    driver.add([*stem, 20])
    driver.step(asked=0.0)
    driver.step(count=1)
    driver.add([*stem, 21, 22])
    driver.step(asked=0.0)
    model.batches.clear()
    second = driver.running[1].sequence
    assert second.cached_tokens == 12
    assert drafter.propose([Ask(second, 1)])[0] is not None
    assert [batch.num_tokens for batch in model.batches] == [3]


def test_columns_behind_the_targets_vocabulary_are_never_drafted() -> None:
    model, drafter, driver = bench(model_vocab=400)
    sequence = driver.add([1, 2, 3, 4]).sequence
    driver.step(asked=0.0)
    sequence.blocks += driver.pool.allocate(4)
    draft = drafter.propose([Ask(sequence, 9)])[0]
    assert draft is not None and len(draft) == 9 and int(draft.tokens.max()) < VOCAB
    assert max(model.greedy([1, 2, 3, 4, int(sequence.tokens[4])], 9)) >= VOCAB


def test_a_model_without_some_token_does_not_draft_behind_it() -> None:
    _, drafter, driver = bench(model_vocab=30)
    poor, good = driver.add([1, 35, 3]), driver.add([1, 2, 3])
    driver.step(asked=0.0)
    for live in (poor, good):
        live.sequence.tokens[3] = 4
    drafts = drafter.propose([Ask(poor.sequence, 1), Ask(good.sequence, 1)])
    assert drafts[0] is None and drafts[1] is not None
    assert not drafter.ready(poor.sequence) and drafter.ready(good.sequence)


def test_what_has_left_leaves_nothing() -> None:
    _, drafter, driver = bench()
    lives = [driver.add([1, 2, 3, number]) for number in range(5)]
    for _ in range(3):
        driver.step(count=2)
    for live in lives:
        driver.finish(live)
    assert not drafter._rows.tracks and not drafter._guessed
    assert len(drafter._rows._free) == len(drafter._rows.table)
    assert drafter.describe()["name"] == "draft_target"


def test_copied_blocks_hold_what_their_marks_say() -> None:
    model, drafter, driver = bench()
    sequence = driver.add([1, 2, 3, 4, 5, 6]).sequence
    driver.step(asked=0.0)
    assert drafter.propose([Ask(sequence, 1)])[0] is not None
    source, other = sequence.blocks[1], next(b for b in range(60) if b not in sequence.blocks)
    drafter.copy_blocks([(source, other)])
    assert drafter._rows.true_rows[other] == drafter._rows.true_rows[source] == 3
    assert model.pool[other].tolist() == model.pool[source].tolist()


def test_a_sequence_may_leave_between_its_draft_and_what_comes_of_it() -> None:
    _, drafter, driver = bench()
    live = driver.add([1, 2, 3, 4, 5])
    driver.step(asked=0.0)
    assert drafter.propose([Ask(live.sequence, 3)])[0] is not None and drafter._guessed
    driver.finish(live)
    assert not drafter._guessed
