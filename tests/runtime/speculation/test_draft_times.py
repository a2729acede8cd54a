"""A draft's time by its length: learned from whatever lengths are drafted."""

from __future__ import annotations

import math
from random import Random

import pytest

from runtime.speculation.draft_times import DraftTimes


def test_before_anything_is_seen_a_token_is_a_pass() -> None:
    times = DraftTimes()
    assert [times.chain(length) for length in (1, 2, 5)] == [1, 2, 5]
    assert times.tree(6) == 6


def test_two_lengths_tell_of_all_others() -> None:
    times, noise = DraftTimes(), Random(0)
    for _ in range(200):
        length = noise.choice([2, 3])
        times.seen_chain(length, (2.0 + 1.3 * (length - 1)) * math.exp(noise.gauss(0, 0.05)))
    assert [times.chain(length) for length in (1, 4)] == pytest.approx([2.0, 5.9], rel=0.08)


def test_a_length_that_is_not_drafted_any_more_does_not_stay_as_dear_as_its_first_cold_drafts() -> None:
    times = DraftTimes()
    for _ in range(3):
        times.seen_chain(1, 9.0)
    for turn in range(400):
        times.seen_chain(3 if turn % 4 else 4, 3.6 if turn % 4 else 4.4)
    assert times.chain(1) < 3.0 < times.chain(3)


def test_of_one_length_alone_all_passes_are_taken_to_be_alike() -> None:
    times = DraftTimes()
    for _ in range(300):
        times.seen_chain(3, 6.0)
    assert times.chain(3) == pytest.approx(6.0, rel=0.05)
    assert times.chain(1) == pytest.approx(2.0, rel=0.15) and times.chain(5) == pytest.approx(10.0, rel=0.15)


def test_a_further_token_is_never_free() -> None:
    times = DraftTimes()
    for _ in range(200):
        times.seen_chain(1, 5.0)
        times.seen_chain(4, 1.0)
    assert 0 < times.chain(1) < times.chain(2) < times.chain(9)


def test_trees_and_chains_do_not_tell_of_each_other() -> None:
    times = DraftTimes()
    for _ in range(100):
        times.seen_tree(5, math.log(3 * 5 / times.tree(5)))
    assert times.tree(5) == pytest.approx(15, rel=0.05)
    assert times.chain(5) == 5 and times.tree(4) == 4
