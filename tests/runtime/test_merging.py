"""Outputs joined are what a client that read them one by one has."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from runtime.merging import absorb, own_copy
from runtime.request import FinishReason, GenerationResult, RequestOutput, RequestTimes, SampleOutput
from runtime.sampling.sampler import TokenLogprobs

_LOGPROBS = st.lists(st.builds(TokenLogprobs, st.integers(0, 9), st.just(-1.0)), max_size=3)
_SAMPLES = st.builds(
    SampleOutput,
    index=st.integers(0, 2),
    text=st.text(max_size=4),
    token_ids=st.lists(st.integers(0, 9), max_size=3),
    logprobs=st.none() | _LOGPROBS,
    cumulative_logprob=st.none() | st.just(-2.0),
    num_tokens=st.integers(0, 9),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    num_draft_tokens=st.integers(0, 9),
    num_accepted_tokens=st.integers(0, 9),
)
_OUTPUTS = st.builds(
    RequestOutput,
    request_id=st.just("r"),
    samples=st.lists(_SAMPLES, max_size=3, unique_by=lambda sample: sample.index),
    finished=st.booleans(),
    num_prompt_tokens=st.integers(0, 9),
    num_cached_tokens=st.integers(0, 9),
    times=st.none() | st.builds(RequestTimes, st.just(1.0)),
    error=st.none() | st.just({"code": "TF-RUN-059"}),
)


@given(st.lists(_OUTPUTS, min_size=1, max_size=6))
def test_one_output_says_what_all_of_them_said(outputs: list[RequestOutput]) -> None:
    kept = copy.deepcopy(outputs)
    one_by_one, joined = GenerationResult(), own_copy(outputs[0])
    for output in outputs:
        one_by_one.add(output)
    for output in outputs[1:]:
        absorb(joined, output)
    assert outputs == kept, "what was joined stays as it was"
    at_once = GenerationResult().add(joined)
    for a, b in zip(one_by_one.completions, at_once.completions, strict=True):
        assert (a.text, a.token_ids, a.logprobs) == (b.text, b.token_ids, b.logprobs)
        assert a.cumulative_logprob == b.cumulative_logprob
        assert a.num_draft_tokens == b.num_draft_tokens
    assert (one_by_one.error, one_by_one.finished) == (at_once.error, at_once.finished)
    assert (one_by_one.times, one_by_one.num_cached_tokens) == (at_once.times, at_once.num_cached_tokens)
