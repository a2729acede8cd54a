import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evals.perplexity import plan_windows
from evals.windows import measure_windows
from trtforge.ground.errors import ForgeError


@given(st.integers(2, 500), st.integers(2, 80), st.data())
def test_windows_score_every_token_once_with_enough_context(length, window, data):
    stride = data.draw(st.integers(1, window - 1))
    windows = plan_windows(length, window, stride)
    scored = [t for w in windows for t in range(w.score_from, w.end)]
    assert scored == list(range(1, length))
    for w in windows:
        assert w.end - w.begin <= window
        assert w.begin < w.score_from
    for w in windows[1:-1]:
        assert w.score_from - w.begin >= window - stride


def _bigram_logits(vocab: int):
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(0))
    return table, lambda ids, _: table[ids]


def test_score_equals_direct_computation_for_a_model_without_memory():
    table, logits_fn = _bigram_logits(13)
    tokens = torch.randint(0, 13, (57,), generator=torch.Generator().manual_seed(1)).tolist()
    scores = measure_windows(logits_fn, tokens, window=16, stride=5).scores
    log_p = table.log_softmax(-1)
    want = [-float(log_p[a, b]) for a, b in itertools.pairwise(tokens)]
    np.testing.assert_allclose(scores.nll, want, rtol=1e-5)
    assert scores.perplexity == pytest.approx(np.exp(np.mean(want)), rel=1e-6)


def test_uniform_model_has_perplexity_of_the_vocabulary():
    scores = measure_windows(lambda ids, _: torch.zeros(len(ids), 17), list(range(17)) * 3, window=8, stride=4).scores
    assert scores.perplexity == pytest.approx(17.0)


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (8, 8), (8, 0), (8, 9)])
def test_windows_that_cannot_score_are_refused(window, stride):
    with pytest.raises(ForgeError) as caught:
        plan_windows(10, window, stride)
    assert caught.value.code == "TF-EVL-001"


def test_nan_logits_are_named():
    with pytest.raises(ForgeError) as caught:
        measure_windows(lambda ids, _: torch.full((len(ids), 5), float("nan")), [1, 2, 3], window=4, stride=2)
    assert caught.value.code == "TF-EVL-003"
    assert caught.value.numbers["not_finite"] == 2


def test_one_token_is_too_short():
    with pytest.raises(ForgeError) as caught:
        measure_windows(lambda ids, _: torch.zeros(len(ids), 5), [1], window=4, stride=2)
    assert caught.value.code == "TF-EVL-002"
