"""Steady state: tokens balance, Little's law holds, and batches trade latency for throughput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner.hardware import gpu
from builder.planner.speculation import Speculating
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import Load, decode_time, drafting_time, knee, prefill_time, steady_state
from builder.planner.types import ParallelPlan, Precision
from tests.builder.planner.models import known, llama_70b

_EIGHT_B = known("meta-llama/Meta-Llama-3.1-8B")
_BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def _engine(parallel: ParallelPlan | None = None, precision: Precision | None = None) -> Engine:
    return Engine(_EIGHT_B, precision or Precision(), gpu("h200"), parallel or ParallelPlan())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6000),
    st.integers(2, 3000),
    st.integers(1, 400),
    st.sampled_from([512, 2048, 8192]),
    st.sampled_from([ParallelPlan(), ParallelPlan(2), ParallelPlan(1, 4)]),
)
def test_little_and_the_balance_of_tokens(isl: int, osl: int, batch: int, budget: int, parallel: ParallelPlan) -> None:
    served = steady_state(_engine(parallel), Load(isl, osl), [batch], max_num_tokens=budget)
    # in flight = rate x time: the wait and the chunks for the first token, a step for each other token
    stays = served.ttft + (osl - 1) * served.itl
    np.testing.assert_allclose(served.requests * stays, batch, rtol=1e-6)
    np.testing.assert_allclose(served.output, served.requests * osl)
    np.testing.assert_allclose(served.input, served.requests * isl)
    assert ((served.input_share >= 0) & (served.input_share <= 1)).all()
    assert (served.ttft[0] >= served.ttft[1]).all() and (served.ttft[1] >= served.ttft[2]).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(16, 4000), st.integers(16, 1000), st.sampled_from([ParallelPlan(), ParallelPlan(2)]))
def test_more_requests_never_lower_throughput_before_the_knee(isl: int, osl: int, parallel: ParallelPlan) -> None:
    served = steady_state(_engine(parallel), Load(isl, osl), _BATCHES, max_num_tokens=8192)
    bend = knee(_BATCHES, served)
    until = _BATCHES.index(bend) if bend is not None else 3
    assert (np.diff(served.output[:, : until + 1], axis=1) > 0).all()
    assert (np.diff(served.itl[:, : until + 1], axis=1) > -1e-12).all()


def test_the_first_token_of_an_idle_replica() -> None:
    engine = _engine()
    alone = prefill_time(engine, 2048)
    served = steady_state(engine, Load(2048, 128), [1], max_num_tokens=8192)
    np.testing.assert_allclose(served.ttft[:, 0], alone)
    cached = prefill_time(engine, 48, cached=2000)
    assert (cached < alone / 3).all()


def test_a_shared_prefix_is_computed_once() -> None:
    engine = _engine()
    plain = steady_state(engine, Load(2048, 128), [16], max_num_tokens=8192)
    shared = steady_state(engine, Load(2048, 128, cached_prefix=1536), [16], max_num_tokens=8192)
    assert (shared.output > plain.output).all()
    assert (shared.ttft < plain.ttft).all()


def test_small_steps_trade_the_first_token_for_even_tokens() -> None:
    engine = _engine()
    small = steady_state(engine, Load(4096, 256), [32], max_num_tokens=512)
    large = steady_state(engine, Load(4096, 256), [32], max_num_tokens=8192)
    assert (small.gap < large.gap).all()
    assert (small.ttft > large.ttft).all()


def test_stages_side_by_side() -> None:
    """Two stages: a token passes both, so latency stays; two micro-batches, so throughput grows."""
    one = steady_state(_engine(), Load(512, 256), [1, 64], max_num_tokens=8192)
    two = steady_state(_engine(ParallelPlan(1, 2)), Load(512, 256), [1, 128], max_num_tokens=8192)
    np.testing.assert_allclose(two.itl[1, 0], one.itl[1, 0], rtol=0.02)
    np.testing.assert_allclose(two.output[1, 1], 2 * one.output[1, 1], rtol=0.05)


def test_answers_of_one_token_are_prompts_only() -> None:
    served = steady_state(_engine(), Load(1000, 1), [8], max_num_tokens=8192)
    assert np.isfinite(served.itl).all()
    assert (served.input_share > 0.9).all()


def test_speculation_pays_at_small_batches_and_not_at_large_ones() -> None:
    engine = _engine()
    spoken = Speculating("eagle3", 4, (0.7, 0.7), draft_cost=0.04, measured=True)
    batches = [1, 256]
    plain = steady_state(engine, Load(512, 512), batches, max_num_tokens=8192)
    faster = steady_state(engine, Load(512, 512), batches, max_num_tokens=8192, speculating=spoken)
    gain = faster.output[1] / plain.output[1]
    assert gain[0] > 1.8
    assert gain[1] < gain[0] - 0.5


def test_drafts_cost_their_own_passes() -> None:
    engine = Engine(llama_70b(), Precision("fp8"), gpu("h200"), ParallelPlan(4))
    draft = Engine(_EIGHT_B, Precision(), gpu("h200"), ParallelPlan())
    spoken = Speculating("draft_target", 4, (0.7, 0.7), draft_cost=0.05)
    assert (drafting_time(engine, 8, 1000, spoken, draft) == 4 * decode_time(draft, 8, 1000)).all()
    np.testing.assert_allclose(drafting_time(engine, 8, 1000, spoken), 4 * 0.05 * decode_time(engine, 8, 1000))
    assert not drafting_time(engine, 8, 1000, Speculating("ngram", 4, (0.3, 0.3))).any()


@pytest.mark.parametrize("batch", [1, 64])
def test_variants_go_with_the_ends_of_the_acceptance(batch: int) -> None:
    spoken = Speculating("ngram", 4, (0.2, 0.6))
    served = steady_state(_engine(), Load(512, 256), [batch], max_num_tokens=8192, speculating=spoken)
    sure = Speculating("ngram", 4, (0.2, 0.2))
    low = steady_state(_engine(), Load(512, 256), [batch], max_num_tokens=8192, speculating=sure)
    np.testing.assert_allclose(served.output[0], low.output[0])
    assert served.output[2] > low.output[2]
