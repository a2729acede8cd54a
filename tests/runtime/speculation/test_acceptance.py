"""Acceptance by source and position, and what a sequence's own drafts change; drafts scored without a verification."""

import numpy as np
import pytest

from runtime.blocks.hashing import PrefixHasher
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.acceptance import Acceptance, tree_source
from runtime.speculation.draft import Draft
from runtime.speculation.shadow import Shadows


def sequence_of(*tokens: int) -> TokenSequence:
    return TokenSequence("r", np.array(tokens, dtype=np.int64), capacity=64, hasher=PrefixHasher(16, b""))


def drawn(acceptance: Acceptance, source: str, truth: list[float], drafts: int, sequences: int = 8) -> None:
    rng = np.random.default_rng(1)
    streams = [sequence_of(1) for _ in range(sequences)]
    for number in range(drafts):
        right = next((at for at, chance in enumerate(truth) if rng.random() >= chance), len(truth))
        acceptance.step()
        acceptance.record(streams[number % sequences], source, len(truth), right)


def test_rates_come_near_the_truth_by_position():
    acceptance = Acceptance(3)
    truth = [0.8, 0.6, 0.3]
    drawn(acceptance, "eagle3", truth, 1500)
    assert acceptance.rates("eagle3").tolist() == pytest.approx(truth, abs=0.12)


def test_positions_that_were_never_tried_follow_those_before_them():
    acceptance = Acceptance(6)
    drawn(acceptance, "eagle3", [0.97], 300)
    assert acceptance.rates("eagle3")[5] > 0.9
    drawn(acceptance, "ngram/2", [0.1], 300)
    assert acceptance.rates("ngram/2")[5] < 0.4


def test_old_drafts_are_forgotten():
    acceptance = Acceptance(1)
    drawn(acceptance, "eagle3", [0.95], 500)
    drawn(acceptance, "eagle3", [0.05], 500)
    assert acceptance.rates("eagle3")[0] < 0.15


def test_what_failed_is_hoped_for_again_after_some_time():
    acceptance = Acceptance(1)
    drawn(acceptance, "eagle3", [0.0], 50)
    before = float(acceptance.rates("eagle3")[0])
    for _ in range(1500):
        acceptance.step()
    assert before < 0.15 and acceptance.rates("eagle3")[0] > 0.6


def test_a_draft_that_ended_before_it_failed_counts_no_failure():
    acceptance = Acceptance(4)
    one = sequence_of(1)
    for _ in range(100):
        acceptance.record(one, "ngram/2", 2, 2)
    assert acceptance.rates("ngram/2")[:2].min() > 0.85
    assert acceptance.explain()["ngram/2"]["tried"][2] == 0
    acceptance.record(one, "ngram/2", 0, 0)
    assert acceptance.explain()["ngram/2"]["drafts"] == 100


def test_a_sequence_differs_from_the_endpoint_by_what_its_own_drafts_did():
    acceptance = Acceptance(2)
    good, bad, new = sequence_of(1), sequence_of(2), sequence_of(3)
    for _ in range(60):
        acceptance.step()
        acceptance.record(good, "eagle3", 2, 2)
        acceptance.record(bad, "eagle3", 2, 0)
    kept = acceptance.kept([(good, "eagle3"), (bad, "eagle3"), (new, "eagle3")])
    assert kept.shape == (3, 2)
    assert kept[0, 0] > 0.8 and kept[1, 0] < 0.3
    known = np.cumprod(acceptance.rates("eagle3"))
    assert (kept[2] >= known).all() and kept[2].tolist() == pytest.approx(known.tolist(), abs=0.08)
    acceptance.leave(bad)
    assert acceptance.odds(bad, "eagle3") == 1.0


def test_n_grams_of_all_classes_share_a_sequences_correction_and_a_heads_do_not():
    acceptance = Acceptance(1)
    one = sequence_of(1)
    for _ in range(30):
        acceptance.record(one, "ngram/2", 1, 0)
    assert acceptance.odds(one, "ngram/16+") < 0.7
    assert acceptance.odds(one, "eagle3") == 1.0


def test_a_trees_levels_are_counted_apart():
    acceptance = Acceptance(2)
    assert acceptance.rates(tree_source("eagle3"))[0] > acceptance.rates("eagle3")[0]
    drawn(acceptance, tree_source("eagle3"), [0.9, 0.9], 200)
    assert acceptance.explain()["eagle3/tree"]["drafts"] == 200
    assert acceptance.rates("eagle3")[0] == pytest.approx(0.8)


class Learner:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def learn(self, sequence, source, drafted, accepted) -> None:
        self.seen.append((source, drafted, accepted))


def shadowed(draft: list[int], *steps: list[int]) -> list[tuple[str, int, int]]:
    one, shadows, learner = sequence_of(1, 2), Shadows(), Learner()
    shadows.note(one, Draft(np.array(draft, dtype=np.int64), "ngram/2"))
    for tokens in steps:
        for token in tokens:
            one.append(token)
        shadows.settle(learner)
    return learner.seen


def test_an_unverified_draft_is_scored_by_what_was_written():
    assert shadowed([5, 6, 7], [5], [6], [9]) == [("ngram/2", 3, 2)]
    assert shadowed([5, 6, 7], [4]) == [("ngram/2", 1, 0)]
    assert shadowed([5, 6], [5, 6, 7]) == [("ngram/2", 2, 2)]
    assert shadowed([5, 6], [5]) == []
    assert shadowed([5, 6], []) == []


def test_one_unverified_draft_at_a_time_and_none_of_who_left():
    one, shadows, learner = sequence_of(1), Shadows(), Learner()
    shadows.note(one, Draft(np.array([5, 6]), "ngram/2"))
    one.append(5)
    shadows.settle(learner)
    shadows.note(one, Draft(np.array([9]), "ngram/3"))
    one.append(6)
    shadows.settle(learner)
    assert learner.seen == [("ngram/2", 2, 2)]
    shadows.note(one, Draft(np.array([9]), "ngram/3"))
    shadows.leave(one)
    one.append(9)
    shadows.settle(learner)
    assert len(learner.seen) == 1
