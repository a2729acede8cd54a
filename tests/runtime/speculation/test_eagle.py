"""EAGLE-3 drafts over paged rows are those of the reference over whole sequences, whatever happens to the blocks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from runtime.blocks import BlockPool
from runtime.speculation import eagle
from runtime.speculation.draft import Ask, Draft
from runtime.speculation.draft_rows import DraftRows
from runtime.speculation.eagle import FLUSH_ROWS, EagleDrafter
from runtime.speculation.trees import TreeDrafting
from tests.runtime.speculation.driver import Driver
from tests.runtime.speculation.paged_head import LIMITS, PagedHead, head_of
from tests.runtime.speculation.truth import chain_of, confidence_of, taps_of, tree_of
from tests.trtforge.drafting.checkpoints import VOCAB

SIZE = 4


class Bench:
    """A drafter, its head and an engine in small; every draft is held against the reference."""

    def __init__(
        self, folder: Path, *, blocks: int = 200, seed: int = 0, tree: TreeDrafting | None = None, **flags: Any
    ) -> None:
        limits = flags.pop("limits", LIMITS)
        self.reference = head_of(folder / "head", **flags)
        self.head = PagedHead(self.reference, num_blocks=blocks, block_size=SIZE, limits=limits)
        self.drafter = EagleDrafter(self.head, tree=tree)
        self.driver = Driver(
            self.drafter, BlockPool(blocks), SIZE, VOCAB, self.head.tap_width, Random(seed), on_draft=self.look
        )
        self.drafts: list[tuple[Ask, Draft | None]] = []
        self.exact = True

    def look(self, ask: Ask, draft: Draft | None) -> None:
        self.drafts.append((ask, draft))
        if draft is None or not self.exact:
            return
        tokens = ask.sequence.tokens[: ask.sequence.length].copy()
        assert draft.source == "eagle3" and draft.confidence is not None
        if not ask.tree or self.drafter._tree is None:
            assert draft.parents is None
            assert draft.tokens.tolist() == chain_of(self.reference, tokens, len(draft), self.head.tap_width)

    def prompt(self, length: int) -> list[int]:
        return [self.driver.token() for _ in range(length)]

    def last(self) -> Draft | None:
        return self.drafts[-1][1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_output": True, "fc_norm": True},
        {"taps": (0, 3)},
        {"mapped": False},
    ],
    ids=["plain", "eagle-3.1", "two taps", "no map"],
)
def test_chains_are_the_references_over_many_rounds(folder: Path, flags: dict[str, Any]) -> None:
    bench = Bench(folder, **flags)
    for length in (5, 17, 1, 8):
        bench.driver.add(bench.prompt(length))
    for count in (1, 4, 2, 6, 3, 5, 4, 4):
        bench.driver.step(count=count)
    # a prompt of one token decodes before anything of it was computed
    assert [draft is None for _, draft in bench.drafts] == [True] + [False] * 4 * 7
    assert all(len(draft) == ask.count for ask, draft in bench.drafts if draft is not None)


def test_counts_of_one_round_may_differ_and_a_batch_is_a_pass(folder: Path) -> None:
    bench = Bench(folder)
    lives = [bench.driver.add(bench.prompt(6)) for _ in range(3)]
    bench.driver.step()
    for live in lives:
        live.sequence.blocks += bench.driver.pool.allocate(3)
    before = len(bench.head.batches)
    drafts = bench.drafter.propose([Ask(live.sequence, count) for live, count in zip(lives, (2, 5, 0), strict=True)])
    assert [None if draft is None else len(draft) for draft in drafts] == [2, 5, None]
    # the prompts' rows of all three in the first pass, then only those who want more
    assert [batch.num_requests for batch in bench.head.batches[before:]] == [3, 2, 1, 1, 1]


def test_confidence_is_the_heads_probability_and_ends_a_chain_that_is_not_worth_it(folder: Path) -> None:
    bench = Bench(folder)
    sequence = bench.driver.add(bench.prompt(9)).sequence
    bench.driver.step()
    sequence.blocks += bench.driver.pool.allocate(3)
    draft = bench.drafter.propose([Ask(sequence, 5)])[0]
    assert draft is not None and draft.confidence is not None
    wanted = confidence_of(bench.reference, sequence.tokens[:10].copy(), draft.tokens.tolist(), bench.head.tap_width)
    assert draft.confidence.tolist() == pytest.approx(wanted, rel=1e-4)
    likely = np.cumprod(wanted)
    bench.driver.step(count=1)
    for kept in (1, 3):
        other = Bench(folder.joinpath(str(kept)))
        twin = other.driver.add(sequence.tokens[:9].tolist()).sequence
        other.driver.step()
        twin.tokens[9] = sequence.tokens[9]
        twin.blocks += other.driver.pool.allocate(3)
        worth = float(likely[kept - 1] + likely[kept]) / 2
        got = other.drafter.propose([Ask(twin, 5, worth=worth)])[0]
        assert got is not None and got.tokens.tolist() == draft.tokens[:kept].tolist()
    third = Bench(folder / "third")
    twin = third.driver.add(sequence.tokens[:9].tolist()).sequence
    third.driver.step()
    got = third.drafter.propose([Ask(twin, 5, worth=2.0)])[0]
    assert got is not None and len(got) == 1, "the first token is always drafted"


def test_a_draft_ends_with_the_blocks(folder: Path) -> None:
    bench = Bench(folder)
    sequence = bench.driver.add(bench.prompt(6)).sequence  # two blocks of four slots: rows 6 and 7 have room
    bench.driver.step()
    assert len(sequence.blocks) == 2
    draft = bench.drafter.propose([Ask(sequence, 9)])[0]
    assert draft is not None and len(draft) == 3


def test_prompts_are_fed_in_passes_within_the_limits(folder: Path) -> None:
    bench = Bench(folder)
    for length in (60, 50, 70, 3):
        bench.driver.add(bench.prompt(length))
    for _ in range(4):
        bench.driver.step(chunk=33)
    assert max(batch.num_tokens for batch in bench.head.batches) <= LIMITS.max_num_tokens
    assert sum(draft is not None for _, draft in bench.drafts) == len(bench.drafts) > 4


def test_many_rows_are_computed_though_nobody_drafts(folder: Path) -> None:
    bench = Bench(folder)
    bench.driver.add(bench.prompt(FLUSH_ROWS - 20))
    for _ in range(40):
        bench.driver.step(asked=0.0)
    assert 0 < bench.drafter._pending.in_use <= FLUSH_ROWS
    assert len(bench.head.batches) == 1 and not len(bench.head.batches[0].logit_indices)
    bench.driver.step(count=3)
    assert bench.last() is not None


def test_a_draft_behind_a_prompt_or_a_long_pause_is_no_ordinary_one(folder: Path) -> None:
    """What it takes is not what a draft of that length costs."""
    bench = Bench(folder)
    bench.driver.add(bench.prompt(40))
    bench.driver.step(count=2)
    assert bench.drafts == []
    bench.driver.step(count=2)
    assert bench.last() is not None and not bench.drafter.ordinary
    bench.driver.step(count=2)
    assert bench.last() is not None and bench.drafter.ordinary
    for _ in range(30):
        bench.driver.step(asked=0.0)
    bench.driver.step(count=2)
    assert bench.last() is not None and not bench.drafter.ordinary
    bench.driver.step(count=2)
    assert bench.last() is not None and bench.drafter.ordinary


def test_a_sequence_that_was_preempted_drafts_again(folder: Path) -> None:
    bench = Bench(folder)
    bench.driver.pool.prefix_cache = False
    live = bench.driver.add(bench.prompt(11))
    for _ in range(4):
        bench.driver.step()
    bench.driver.preempt(live)
    other = bench.driver.add(bench.prompt(13))  # takes the blocks
    bench.driver.waiting.reverse()
    for _ in range(4):
        bench.driver.step()
    assert {ask.sequence for ask, draft in bench.drafts[-2:] if draft is not None} == {live.sequence, other.sequence}


def test_a_preempted_sequence_finds_the_rows_of_the_blocks_that_it_gets_back(folder: Path) -> None:
    bench = Bench(folder)
    live = bench.driver.add(bench.prompt(11))
    for _ in range(4):
        bench.driver.step(asked=0.0)
    bench.driver.preempt(live)
    bench.driver.step(asked=0.0)
    assert live.sequence.cached_tokens == 12
    bench.driver.step(count=2)
    assert bench.last() is not None


def test_who_begins_on_shared_blocks_drafts_when_their_rows_are_true(folder: Path) -> None:
    bench = Bench(folder)
    stem = bench.prompt(12)
    first = bench.driver.add([*stem, 1, 2])
    bench.driver.step()
    bench.driver.step(count=3)
    second = bench.driver.add([*stem, 1, 5, 6])  # the block's last row was joined with the same token
    bench.driver.step(count=2)
    bench.driver.step(count=2)
    assert second.sequence.cached_tokens == 12
    shared = set(second.sequence.blocks) & set(first.sequence.blocks)
    assert len(shared) == 3
    assert {ask.sequence for ask, draft in bench.drafts[-2:] if draft is not None} == {
        first.sequence,
        second.sequence,
    }


def test_rows_that_wait_are_computed_before_those_of_who_shares_their_blocks(folder: Path) -> None:
    bench = Bench(folder)
    stem = bench.prompt(12)
    first = bench.driver.add([*stem, 1, 2])
    bench.driver.step(asked=0.0)
    second = bench.driver.add([*stem, 1, 5, 6])
    bench.driver.step(asked=0.0)
    second.sequence.blocks += bench.driver.pool.allocate(1)
    before = len(bench.head.batches)
    draft = bench.drafter.propose([Ask(second.sequence, 2)])[0]
    assert draft is not None
    bench.look(Ask(second.sequence, 2), draft)
    assert bench.head.batches[before].num_requests == 2, "one pass for both"
    assert bench.drafter._rows.tracks[first.sequence].rows >= 12


def test_the_next_turn_of_a_conversation_drafts_on_the_blocks_of_the_last_one(folder: Path) -> None:
    bench = Bench(folder)
    live = bench.driver.add(bench.prompt(9))
    for _ in range(5):
        bench.driver.step(asked=0.0)
    known = live.sequence.tokens[: live.sequence.computed].tolist()
    bench.driver.finish(live)
    following = bench.driver.add([*known, 3, 4, 5])
    bench.driver.step(asked=0.0)
    assert following.sequence.cached_tokens == len(known) // SIZE * SIZE
    bench.driver.step(count=3)
    # the last row of the last shared block was joined with the token that followed it first
    assert bench.last() is not None and bench.drafter.ready(following.sequence)


@pytest.mark.parametrize("length", [9, 8], ids=["inside a block", "at its end"])
def test_samples_of_one_prompt_draft_each_their_own(folder: Path, length: int) -> None:
    bench = Bench(folder)
    live = bench.driver.add(bench.prompt(length))
    bench.driver.step()
    children = bench.driver.fork(live, 3)
    assert len({int(c.sequence.tokens[length]) for c in [live, *children]}) > 1
    bench.driver.step(count=3)
    made = {ask.sequence for ask, draft in bench.drafts if draft is not None}
    if length % SIZE:
        assert made == {c.sequence for c in [live, *children]}
    else:
        assert len(made) == 1, "one row hangs on the token behind a shared block: one sample may have it"
    bench.exact = bool(length % SIZE)
    bench.driver.step(count=3)
    assert all(draft is not None for _, draft in bench.drafts[-4:])


def test_samples_copy_rows_that_were_true_before_they_split_off(folder: Path) -> None:
    bench = Bench(folder)
    live = bench.driver.add(bench.prompt(FLUSH_ROWS + 11))
    bench.driver.step(chunk=FLUSH_ROWS + 11)
    rows = bench.drafter._rows
    assert rows.tracks[live.sequence].rows == FLUSH_ROWS + 10
    children = bench.driver.fork(live, 2)
    before = len(bench.head.batches)
    bench.driver.step(count=2)
    assert [batch.num_tokens for batch in bench.head.batches[before:]] == [3, 3]
    assert {ask.sequence for ask, draft in bench.drafts if draft is not None} == {
        other.sequence for other in [live, *children]
    }


def test_a_copied_block_has_the_marks_of_its_source(folder: Path) -> None:
    bench = Bench(folder)
    rows = bench.drafter._rows
    live = bench.driver.add(bench.prompt(6))
    bench.driver.step()
    bench.driver.step(count=2)
    source, other = live.sequence.blocks[1], next(b for b in range(200) if b not in live.sequence.blocks)
    rows.true_rows[other] = SIZE  # of an earlier life
    before = rows.versions[other]
    bench.drafter.copy_blocks([(source, other)])
    assert rows.true_rows[other] == rows.true_rows[source] < SIZE and rows.versions[other] > before
    keys = bench.head.keys["layers.0.self_attn"]
    assert torch.equal(keys[source], keys[other]) or torch.equal(keys[source].isnan(), keys[other].isnan())


def test_rows_of_an_answer_that_wait_are_computed_for_who_shares_them(folder: Path) -> None:
    bench = Bench(folder)
    first = bench.driver.add(bench.prompt(5))
    bench.driver.step()
    bench.driver.step(count=2)
    for _ in range(9):
        bench.driver.step(asked=0.0)
    known = first.sequence.tokens[: first.sequence.computed // SIZE * SIZE + 1].tolist()
    second = bench.driver.add([*known, 3])
    bench.driver.step(asked=0.0)
    assert second.sequence.cached_tokens is not None and second.sequence.cached_tokens > 8
    second.sequence.blocks += bench.driver.pool.allocate(1)
    draft = bench.drafter.propose([Ask(second.sequence, 2)])[0]
    assert draft is not None
    bench.look(Ask(second.sequence, 2), draft)


def test_blocks_of_equal_length_after_a_preemption_are_other_blocks(folder: Path) -> None:
    bench = Bench(folder, blocks=40)
    prompt = bench.prompt(11)
    twin, live = bench.driver.add(prompt), bench.driver.add(prompt)
    bench.driver.step(chunk=8)
    mine = list(live.sequence.blocks)
    assert live.sequence.computed == 8 and not set(mine) & set(twin.sequence.blocks)
    bench.driver.preempt(live)  # the twin's blocks are those that can be found
    bench.driver.add(bench.prompt(12))
    bench.driver.waiting.reverse()
    bench.driver.step(asked=0.0)
    assert live.sequence.blocks[:2] == twin.sequence.blocks[:2]
    for _ in range(2):
        bench.driver.step(count=3)
    assert [draft is not None for ask, draft in bench.drafts if ask.sequence is live.sequence] == [True, True]


def test_without_rows_on_shared_blocks_a_sequence_stays_cold(folder: Path) -> None:
    bench = Bench(folder)
    stem = bench.prompt(8)
    quiet = bench.driver.add(stem, speculates=False)
    for _ in range(12):
        bench.driver.step(asked=0.0)
    known = quiet.sequence.tokens[: quiet.sequence.computed].tolist()
    other = bench.driver.add([*known, 1, 2])
    bench.driver.step(asked=0.0)
    assert other.sequence.cached_tokens is not None and other.sequence.cached_tokens > len(stem)
    bench.driver.step(count=2)
    assert bench.last() is None, "answers of a sequence that does not speculate have no rows"
    alike = bench.driver.add([*stem, 1, 2, 3])
    bench.driver.step(asked=0.0)
    bench.driver.step(count=2)
    assert [draft is not None for ask, draft in bench.drafts[-3:] if ask.sequence is alike.sequence] == [True]
    for _ in range(FLUSH_ROWS + 4):
        if other not in bench.driver.running or not bench.drafter.ready(other.sequence):
            break
        bench.driver.step(asked=0.0)
    assert not bench.drafter.ready(other.sequence), "what can never be drafted for is not collected for ever"


def test_where_nobody_asks_rows_of_answers_cost_little_and_grow_cold(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle, "WAITING_ROWS", 72)
    bench = Bench(folder, blocks=4000)

    def rows_for(lives: int, steps: int) -> int:
        before = sum(batch.num_tokens for batch in bench.head.batches)
        batch = [bench.driver.add(bench.prompt(2)) for _ in range(lives)]
        for _ in range(steps):
            bench.driver.step(asked=0.0)
        for live in batch:
            bench.driver.finish(live)
        return sum(batch.num_tokens for batch in bench.head.batches) - before

    idle = [rows_for(8, 70) for _ in range(8)]
    assert idle[0] > 0.3 * 8 * 70, "a policy that has drafted lately will draft again"
    assert sum(idle[4:]) <= 0.25 * 4 * 8 * 70, "rows are computed though nobody drafts"
    long = bench.driver.add(bench.prompt(2))
    for _ in range(80):
        bench.driver.step(asked=0.0)
    assert bench.drafter._pending.in_use <= 72, "what waits is bounded"
    assert long in bench.driver.running and not bench.drafter.ready(long.sequence)
    fresh = bench.driver.add(bench.prompt(6))
    bench.driver.step(asked=0.0)
    assert bench.drafter.ready(fresh.sequence), "a new request can be drafted for at any time"
    for _ in range(2):
        bench.driver.add(bench.prompt(6))
    for _ in range(20):
        bench.driver.step(count=3)
    assert bench.last() is not None and bench.drafter._unasked, "drafts that are asked for pay for the others"


def test_recycled_blocks_look_empty(folder: Path) -> None:
    bench = Bench(folder, blocks=8)
    live = bench.driver.add(bench.prompt(14))
    for _ in range(3):
        bench.driver.step(count=2)
    rows = bench.drafter._rows
    held = list(live.sequence.blocks)
    assert any(rows.true_rows[block] for block in held)
    bench.driver.finish(live)
    quiet = bench.driver.add(bench.prompt(25), speculates=False)
    bench.driver.step(asked=0.0)
    assert set(quiet.sequence.blocks) & set(held)
    assert all(rows.true_rows[block] == 0 for block in quiet.sequence.blocks)


def test_what_has_left_leaves_nothing(folder: Path) -> None:
    bench = Bench(folder)
    lives = [bench.driver.add(bench.prompt(7)) for _ in range(8)]
    for _ in range(3):
        bench.driver.step(count=2)
    for number, live in enumerate(lives):
        bench.driver.finish(live, leave_first=bool(number % 2))
    bench.driver.add(bench.prompt(5))
    bench.driver.step()
    bench.driver.step()
    rows = bench.drafter._rows
    assert len(rows.tracks) == 1 and not bench.drafter._left
    assert len(rows.table) - len(rows._free) == 1
    assert bench.drafter._pending.in_use <= 4
    bench.drafter.leave(lives[0].sequence)  # known to nobody: no fault
    bench.drafter.close()
    assert bench.head.closed


def test_an_engine_that_taps_nothing_is_a_fault(folder: Path) -> None:
    bench = Bench(folder)
    bench.driver.tap_width = 0
    bench.driver.add(bench.prompt(5))
    with pytest.raises(ValueError, match="tapped none"):
        bench.driver.step()


# --- trees --------------------------------------------------------------------------------------------------

CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]
SHAPES = {
    "dynamic": lambda: TreeDrafting.dynamic(depth=4, top_k=3, total=12),
    "dynamic, one level": lambda: TreeDrafting.dynamic(depth=1, top_k=4, total=4),
    "static": lambda: TreeDrafting.fixed(CHOICES),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_trees_are_those_of_whole_paths(folder: Path, kind: str) -> None:
    tree = SHAPES[kind]()
    bench = Bench(folder, tree=tree)
    for length in (5, 9, 2):
        bench.driver.add(bench.prompt(length))
    for _ in range(4):
        begin = len(bench.drafts)
        tokens = {live.sequence: live.sequence.tokens[: live.sequence.length].copy() for live in bench.driver.running}
        bench.driver.step(count=20, tree=True)
        for ask, draft in bench.drafts[begin:]:
            assert draft is not None and draft.parents is not None
            known = tokens[ask.sequence]
            taps = taps_of(known, len(known) - 1, bench.head.tap_width)
            wanted = tree_of(bench.reference, known, taps, tree.shape, tree.static, tree.shape.levels)
            assert draft.tokens.tolist() == wanted.tokens.tolist()
            assert draft.parents.tolist() == wanted.parents.tolist()
    assert len(bench.drafts) == 9


def test_a_tree_has_the_levels_that_its_blocks_hold_and_the_best_nodes_of_a_count(folder: Path) -> None:
    tree = SHAPES["dynamic"]()
    bench = Bench(folder, tree=tree)
    lives = [bench.driver.add(bench.prompt(length)) for length in (5, 9, 8)]
    bench.driver.step()
    lives[0].sequence.blocks += bench.driver.pool.allocate(4)  # 3 + 16 slots: every level
    asks = [Ask(live.sequence, count, tree=True) for live, count in zip(lives, (11, 11, 2), strict=True)]
    drafts = bench.drafter.propose(asks)
    width = bench.head.tap_width
    for live, draft, levels in zip(lives, drafts, (4, 2, 1), strict=True):
        tokens = live.sequence.tokens[: live.sequence.length].copy()
        wanted = tree_of(bench.reference, tokens, taps_of(tokens, len(tokens) - 1, width), tree.shape, None, levels)
        assert draft is not None and draft.parents is not None and draft.confidence is not None
        if live is not lives[2]:
            assert draft.tokens.tolist() == wanted.tokens.tolist()
            assert draft.parents.tolist() == wanted.parents.tolist()
            chain = [int(t) for t in draft.tokens[:1]]
            assert draft.confidence[0] == pytest.approx(confidence_of(bench.reference, tokens, chain, width)[0], 1e-4)
        else:
            assert draft.tokens.tolist() == wanted.tokens[:2].tolist() and draft.parents.tolist() == [0, 0]


def test_a_cut_tree_keeps_the_parents_of_its_best_nodes(folder: Path) -> None:
    tree = SHAPES["dynamic"]()
    bench = Bench(folder, tree=tree)
    sequence = bench.driver.add(bench.prompt(6)).sequence
    bench.driver.step()
    sequence.blocks += bench.driver.pool.allocate(4)
    whole, cut = (
        bench.drafter._tree.draft(bench.head, roots, [count], logits.clone(), states.clone())[0]
        for roots, count, logits, states in _twice(bench, sequence)
    )
    assert whole is not None and cut is not None and len(cut) == 5 and len(whole) == 11
    assert cut.parents is not None and whole.parents is not None
    likely = _likely(whole)
    kept = sorted(np.argsort(-likely, kind="stable")[:5].tolist())
    assert cut.tokens.tolist() == whole.tokens[kept].tolist()
    number = {0: 0} | {old + 1: new for new, old in enumerate(kept, 1)}
    assert cut.parents.tolist() == [number[int(whole.parents[old])] for old in kept]


def _likely(draft: Draft) -> np.ndarray:
    assert draft.parents is not None and draft.confidence is not None
    likely = [1.0]
    for parent, own in zip(draft.parents.tolist(), draft.confidence.tolist(), strict=True):
        likely.append(likely[parent] * own)
    return np.array(likely[1:])


def _twice(bench: Bench, sequence: Any) -> list[Any]:
    from runtime.speculation.draft_rows import Span
    from runtime.speculation.trees import Roots

    rows = bench.drafter._rows
    track = rows.asked(sequence)
    assert track is not None
    _, logits, states, _ = bench.drafter._feed([Span(track, 0, track.computed, logits=True)])
    logits, states = logits.clone(), states.clone()
    roots = Roots(
        np.array([int(sequence.tokens[track.computed])], dtype=np.int32),
        np.array([track.computed]),
        np.array([12]),
        rows.table[[track.row]],
    )
    return [(roots, count, logits, states) for count in (11, 5)]


def test_a_head_without_numbers_drafts_no_tree(folder: Path) -> None:
    tree = SHAPES["dynamic"]()
    bench = Bench(folder, tree=tree)
    sequence = bench.driver.add(bench.prompt(6)).sequence
    bench.driver.step()
    sequence.blocks += bench.driver.pool.allocate(4)
    roots, _, logits, states = _twice(bench, sequence)[0]
    assert tree.draft(bench.head, roots, [11], torch.full_like(logits, torch.nan), states) == [None]


# --- the ordinary case -------------------------------------------------------------------------------------------


def _history(folder: Path, seed: int, tree: TreeDrafting | None) -> list[Any]:
    """Drafts of a random history: prompts that share blocks, samples that split off, sequences that end."""
    bench = Bench(folder, seed=seed, tree=tree)
    bench.exact = False
    random = Random(seed)
    prompts = [bench.prompt(random.randint(1, 14)) for _ in range(3)]
    for step in range(10):
        if step % 3 == 0:
            bench.driver.add([*random.choice(prompts), *bench.prompt(random.randint(0, 3))])
        bench.driver.step(count=random.randint(1, 5), tree=tree is not None, asked=random.choice([1.0, 0.7]))
        if step % 5 == 4:
            bench.driver.finish(random.choice(bench.driver.running))
    told = []
    for ask, draft in bench.drafts:
        assert draft is None or draft.levels() >= 1
        parents = None if draft is None or draft.parents is None else draft.parents.tolist()
        told.append((ask.count, None if draft is None else (draft.tokens.tolist(), parents)))
    return told


@pytest.mark.parametrize("tree", [None, "dynamic", "static"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_ordinary_case_is_the_general_one(
    folder: Path, seed: int, tree: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is packed in one look gives the drafts that looking at every row gives."""
    steady, used = DraftRows.steady, []

    def spy(self: DraftRows, *args: Any, **options: Any) -> Any:
        used.append(steady(self, *args, **options))
        return used[-1]

    shape = SHAPES[tree]() if tree else None
    monkeypatch.setattr(DraftRows, "steady", spy)
    quick = _history(folder / "quick", seed, shape)
    assert any(batch is not None for batch in used)
    monkeypatch.setattr(DraftRows, "steady", lambda *_, **__: None)
    assert _history(folder / "general", seed, SHAPES[tree]() if tree else None) == quick


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_tree_is_the_same_where_a_pass_takes_few_sequences(folder: Path, kind: str) -> None:
    """Levels in passes of two sequences, and of as many rows as two have, are those of one pass."""
    few = dataclasses.replace(LIMITS, max_num_tokens=17)
    found = []
    for limits in (LIMITS, few):
        bench = Bench(folder / str(limits.max_num_tokens), tree=SHAPES[kind](), limits=limits)
        for length in (5, 9, 2, 6, 3):
            bench.driver.add(bench.prompt(length))
        for _ in range(3):
            bench.driver.step(count=20, tree=True)
        found.append([(d.tokens.tolist(), d.parents.tolist()) for _, d in bench.drafts if d is not None])
    assert found[0] == found[1] and len(found[0]) == 10
