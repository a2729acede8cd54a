import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.perplexity import Scores
from evals.power import agreement_in_reach, drop_in_reach, items_for_drop, positions_for_agreement
from evals.statistics import (
    change_interval,
    mcnemar,
    paired_increase,
    paired_mean_difference,
    perplexity_interval,
    wilson,
)
from trtforge.ground.errors import ForgeError


def _scores(nll, digest="a" * 64, window=8, stride=4):
    return Scores(nll=np.asarray(nll, dtype=np.float64), tokens_sha256=digest, window=window, stride=stride)


def test_identical_models_have_no_increase_and_no_width():
    nll = np.random.default_rng(0).gamma(2.0, 1.5, 4096)
    interval = paired_increase(_scores(nll), _scores(nll))
    assert (interval.value, interval.low, interval.high) == (0.0, 0.0, 0.0)


def test_paired_interval_is_narrower_than_the_unpaired_figures_suggest():
    rng = np.random.default_rng(1)
    nll = rng.gamma(2.0, 1.5, 8192)
    worse = nll + 0.02 + rng.normal(0, 0.05, 8192)
    base, cand = _scores(nll), _scores(worse)
    interval = paired_increase(base, cand)
    assert interval.low < np.expm1(0.02) < interval.high
    own = perplexity_interval(base)
    assert (interval.high - interval.low) < 0.2 * (own.high - own.low) / own.value


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    hits = 0
    for trial in range(100):
        difference = rng.normal(0.03, 0.3, 2048)
        interval = paired_increase(_scores(np.ones(2048)), _scores(1 + difference), seed=trial, resamples=500)
        hits += interval.low <= np.expm1(0.03) <= interval.high
    assert 85 <= hits <= 100


def test_scores_of_different_tokens_are_refused():
    with pytest.raises(ForgeError) as caught:
        paired_increase(_scores([1.0, 2.0]), _scores([1.0, 2.0], digest="b" * 64))
    assert caught.value.code == "TF-EVL-004"


@given(st.integers(1, 5000), st.data())
@settings(max_examples=60)
def test_wilson_interval_brackets_the_share(trials, data):
    successes = data.draw(st.integers(0, trials))
    interval = wilson(successes, trials)
    assert 0.0 <= interval.low <= interval.value + 1e-12
    assert interval.value - 1e-12 <= interval.high <= 1.0


def test_wilson_of_a_known_case():
    interval = wilson(8, 10)  # Wilson 95 % for 8 of 10
    assert interval.low == pytest.approx(0.4902, abs=2e-4)
    assert interval.high == pytest.approx(0.9433, abs=2e-4)


def test_mcnemar_of_a_known_case():
    # 59 items differ, 21 one way: exact two-sided binomial, as R's binom.test(21, 59) gives it
    before = [True] * 21 + [False] * 38 + [True] * 10
    after = [False] * 21 + [True] * 38 + [True] * 10
    found = mcnemar(before, after)
    assert (found.lost, found.gained, found.items) == (21, 38, 69)
    assert found.p_value == pytest.approx(0.0364, abs=2e-3)
    assert found.change.value == pytest.approx(17 / 69)
    assert found.change.low < 17 / 69 < found.change.high


def test_mcnemar_is_symmetric_and_says_nothing_of_equals():
    assert mcnemar([True, False], [True, False]).p_value == 1
    there, back = mcnemar([True] * 9 + [False], [False] * 10), mcnemar([False] * 10, [True] * 9 + [False])
    assert there.p_value == back.p_value == pytest.approx(2 * 0.5**9)
    assert there.change.low == pytest.approx(-back.change.high)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_an_interval_of_change_holds_its_padded_centre_and_never_has_no_width(pairs):
    change = mcnemar([b for b, _ in pairs], [c for _, c in pairs]).change
    assert -1 <= change.low < change.high <= 1


def test_the_interval_of_change_covers_the_truth_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(5), 0
    for _ in range(300):
        before = rng.random(80) < 0.7
        after = np.where(before, rng.random(80) < 0.85, rng.random(80) < 0.1)
        change = mcnemar(before.tolist(), after.tolist()).change
        hits += change.low <= 0.7 * 0.85 + 0.3 * 0.1 - 0.7 <= change.high
    assert 275 <= hits <= 299


def test_a_paired_mean_difference_is_of_the_pairs():
    interval = paired_mean_difference([1.0, 5.0, 9.0], [2.0, 6.0, 10.0])
    assert (interval.value, interval.low, interval.high) == (1.0, 1.0, 1.0)


def test_ninety_nine_per_cent_need_381_positions():
    assert positions_for_agreement(0.99) == 381
    assert wilson(381, 381).low >= 0.99 > wilson(380, 380).low
    assert positions_for_agreement(1.0) is None
    assert agreement_in_reach(381) == pytest.approx(wilson(381, 381).low)


@pytest.mark.parametrize("limit", [0.02, 0.1, 0.15, 0.5])
def test_fewest_items_for_a_drop_are_those_at_which_no_loss_excludes_it(limit):
    needed = items_for_drop(limit)
    assert change_interval(0, 0, needed).high <= limit
    assert needed == 1 or change_interval(0, 0, needed - 1).high > limit
    assert drop_in_reach(needed) == pytest.approx(change_interval(0, 0, needed).high)
    assert items_for_drop(0) is None
