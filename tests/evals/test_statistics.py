import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.perplexity import Scores
from evals.statistics import paired_increase, perplexity_interval, wilson
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
