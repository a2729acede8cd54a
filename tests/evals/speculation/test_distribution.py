"""The chi-square test of sampled beginnings: its arithmetic, its error rate, and the faults that it finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from evals.speculation.asking import Reply, Round
from evals.speculation.distribution import (
    MIN_EXPECTED,
    Bins,
    Fit,
    chi_square,
    distribution_gate,
    drafted_place,
    fit,
    holm,
    make_bins,
)
from evals.speculation.equality import greedy
from tests.evals.speculation.toy import ToyAsking, right, too_likely, toy_logits

PROMPT = [0, 2]


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64))
    return weights / weights.sum()


def of_toy(beginning: tuple[int, ...]) -> np.ndarray:
    return softmax(toy_logits([*PROMPT, *beginning]))


def test_all_bins_of_a_small_vocabulary_are_the_whole_distribution() -> None:
    bins = make_bins(of_toy, 100_000, 3)
    exact = {
        draw: math.prod(of_toy(draw[:n])[draw[n]] for n in range(3)) for draw in itertools.product(range(3), repeat=3)
    }
    assert sorted(bins.beginnings) == sorted(exact) or len(bins.beginnings) == len(exact) - 1
    for name, expected in zip(bins.beginnings, bins.expected, strict=False):
        assert expected == pytest.approx(100_000 * exact[name])
    assert sum(bins.expected) == pytest.approx(100_000)


@pytest.mark.parametrize("draws", [32, 100, 300, 2000])
@pytest.mark.parametrize("vocab", [3, 40])
def test_every_bin_expects_enough_and_expectations_are_those_of_the_counting(draws: int, vocab: int) -> None:
    def probabilities(beginning: tuple[int, ...]) -> np.ndarray:
        return softmax(toy_logits([*PROMPT, *beginning], vocab))

    bins = make_bins(probabilities, draws, 2)
    assert min(bins.expected) >= MIN_EXPECTED and sum(bins.expected) == pytest.approx(draws)
    # every possible draw, counted with its probability, gives what the bins expect
    shares = np.zeros(len(bins.expected))
    for draw in itertools.product(range(vocab), repeat=2):
        share = probabilities(())[draw[0]] * probabilities(draw[:1])[draw[1]]
        shares += share * np.array(bins.count([draw]))
    assert shares * draws == pytest.approx(np.array(bins.expected))


def test_an_end_is_not_followed() -> None:
    asked = []

    def probabilities(beginning: tuple[int, ...]) -> np.ndarray:
        asked.append(beginning)
        return np.array([0.5, 0.3, 0.2])

    bins = make_bins(probabilities, 1000, 2, frozenset({1}))
    assert (1,) not in asked and (1,) in bins.beginnings
    assert bins.count([(1,), (0, 2)])[bins.beginnings.index((1,))] == 1


def test_p_values_against_known_quantiles() -> None:
    # 95 % quantiles of chi-square: 3.841 of one degree of freedom, 11.070 of five
    shift = math.sqrt(3.841 * 50 / 2)
    assert chi_square([50 + shift, 50 - shift], [50, 50])[1] == pytest.approx(0.05, rel=1e-3)
    shift = math.sqrt(11.070 * 50 / 2)
    seen = [50 + shift, 50 - shift, 50, 50, 50, 50]
    assert chi_square(seen, [50] * 6)[1] == pytest.approx(0.05, rel=1e-3)
    assert chi_square([10], [10]) == (0.0, 1.0)
    assert chi_square([9, 1], [10, 0]) == (math.inf, 0.0)
    assert chi_square([10, 0], [10, 0])[1] == 1.0


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_p_values_of_a_right_engine_are_uniform() -> None:
    """A tenth of them lies below a tenth: the test neither cries wolf nor sleeps."""
    rng = np.random.default_rng(5)
    bins = make_bins(of_toy, 256, 2)
    values = []
    behind = np.cumsum([of_toy((first,)) for first in range(3)], axis=1)
    for _ in range(2000):
        first = rng.choice(3, size=256, p=of_toy(()))
        second = (rng.random((256, 1)) > behind[first, :2]).sum(axis=1)
        draws = list(zip(first.tolist(), second.tolist(), strict=True))
        values.append(chi_square(bins.count(draws), bins.expected)[1])
    assert 0.07 < np.mean(np.array(values) < 0.1) < 0.13
    assert np.mean(np.array(values) < 0.001) < 0.005


def fits(asking: ToyAsking, draws: int = 600) -> list[Fit]:
    return [
        fit(asking, f"chat {number}", prompt, draws=draws, together=16)
        for number, prompt in enumerate(([0, 2], [1], [2, 2]), 1)
    ]


def test_a_right_engine_passes_and_its_draws_are_the_bases() -> None:
    found = fits(ToyAsking(right))
    gate = distribution_gate(found, 1e-4)
    assert gate.passed and gate.measured >= 1e-4
    assert all(one.same == one.draws == 600 and one.bins > 5 and one.drafted for one in found)
    assert all(one.p_value == one.base_p_value for one in found)


def test_drafts_that_are_accepted_too_often_fail() -> None:
    found = fits(ToyAsking(too_likely))
    gate = distribution_gate(found, 1e-4)
    assert not gate.passed and gate.measured < 1e-4
    assert all(one.base_p_value > 1e-3 and one.same < one.draws for one in found)
    assert "chi-square" in gate.detail and "corrected after Holm" in gate.detail


def test_without_drafts_or_without_chance_nothing_was_tested() -> None:
    assert "nothing was drafted" in distribution_gate(fits(ToyAsking(right, drafts=False), 64), 1e-4).detail
    certain = Fit("chat 1", 64, 1, 0.0, 1.0, 10, 10, 64, 1.0)
    gate = distribution_gate([certain], 1e-4)
    assert not gate.passed and "leaves anything to chance" in gate.detail


def test_a_draw_belongs_to_its_longest_beginning() -> None:
    bins = Bins(((0,), (0, 1), (2,)), (10, 10, 10, 10))
    assert bins.count([(0, 1, 2), (0, 2, 2), (2, 0, 0), (1, 1, 1), (0,)]) == [2, 1, 1, 1]


def test_draws_go_on_where_a_draft_stood_and_much_is_open() -> None:
    asking = ToyAsking(right)
    prompts = [[0, 1], [2, 2, 1]]
    plain = asking.answer(prompts, [greedy(6)] * 2, speculate=False).answers
    assert drafted_place(asking, ["a 1", "a 2"], prompts, plain) == ("a 1", [0, 1])
    # one answer with two drafts, behind its tokens 0 and 3
    tokens = plain[1].token_ids
    told = Reply(tokens, (Round(3, 2, 2), Round(2, 1, 1)))
    name, context = drafted_place(asking, ["a 1", "a 2"], prompts, [plain[0], told])
    scores = {}
    for root in (0, 3):
        before = [*prompts[1], *tokens[:root]]
        drawn = softmax(toy_logits(before))[tokens[root]]
        scores[root] = drawn * (1 - softmax(toy_logits([*before, tokens[root]])).max())
    best = max(scores, key=scores.__getitem__)
    assert (name, context) == (f"a 2, token {best}", [*prompts[1], *tokens[:best]])
