"""Shapes and meanings of what a client is told."""

import numpy as np

from runtime.frontend.answering import Answer
from runtime.frontend.asking import Asked
from runtime.request import FinishReason, Request, RequestOutput, RequestTimes, SampleOutput
from runtime.sampling.sampler import TokenLogprobs
from triton_repo.layouts.native_tensors import OUTPUTS

ALL = frozenset(row.name for row in OUTPUTS)
REQUEST = Request(prompt="Hi")


def _one(asked, output, wanted=ALL, row=0):
    [arrays] = Answer(asked, row, wanted, 16).responses(output)
    return arrays


def test_a_text_answer_has_the_ensembles_shapes_and_the_prompt_once():
    sample = SampleOutput(0, text="ä", token_ids=[1], num_tokens=3, finish_reason=FinishReason.STOP)
    arrays = _one(Asked(REQUEST, echo="Hi "), RequestOutput("r", [sample], True, 5, max_tokens=9), row=2)
    assert arrays["text_output"].shape == (1,)
    assert arrays["text_output"][0].decode() == "Hi ä"
    assert arrays["finish_reason"].tolist() == [[b"stop"]]
    expected = {
        "batch_index": 2,
        "sequence_index": 0,
        "num_input_tokens": 5,
        "num_output_tokens": 3,
        "num_cached_tokens": 0,
    }
    assert {name: arrays[name].tolist() for name in expected} == {name: [[value]] for name, value in expected.items()}
    assert arrays["max_tokens_granted"].tolist() == [[9]]
    assert "output_ids" not in arrays
    assert "cum_log_probs" not in arrays
    assert "arrival_time_ns" not in arrays


def test_counts_of_a_stream_add_up_where_a_client_asks_for_its_responses_own():
    pieces = [SampleOutput(0, token_ids=[1, 2], num_tokens=2), SampleOutput(0, num_tokens=2)]
    pieces.append(SampleOutput(0, token_ids=[3], num_tokens=3, finish_reason=FinishReason.LENGTH))
    outputs = [RequestOutput("r", [piece], piece.finish_reason is not None, 5, 4) for piece in pieces]
    own = [_one(Asked(REQUEST, own_counts=True), output)["num_output_tokens"].item() for output in outputs]
    so_far = [_one(Asked(REQUEST), output)["num_output_tokens"].item() for output in outputs]
    assert (own, so_far) == ([2, 0, 1], [2, 2, 3])
    assert _one(Asked(REQUEST), outputs[0])["num_cached_tokens"].tolist() == [[4]]


def test_what_cleansing_took_out_is_said_where_it_took_any():
    sample = SampleOutput(0, text="a")
    assert "prompt_characters_removed" not in _one(Asked(REQUEST), RequestOutput("r", [sample], False, 5))
    output = RequestOutput("r", [sample], False, 5, prompt_characters_removed=2)
    assert _one(Asked(REQUEST), output)["prompt_characters_removed"].tolist() == [[2]]


def test_only_what_is_wanted():
    output = RequestOutput("r", [SampleOutput(0, text="a")], False, 5)
    assert set(_one(Asked(REQUEST, metrics=True), output, {"text_output"})) == {"text_output"}


def test_a_token_answer_leaves_the_end_token_out():
    logprobs = [TokenLogprobs(7, -0.5), TokenLogprobs(2, -0.25)]
    ended = SampleOutput(
        1, token_ids=[7, 2], logprobs=logprobs, cumulative_logprob=-0.75, finish_reason=FinishReason.STOP, stop_reason=2
    )
    asked = Asked(REQUEST, echo_tokens=(5, 6), tokens=True, log_probs=True)
    arrays = _one(asked, RequestOutput("r", [ended], True, 2))
    assert arrays["output_ids"].tolist() == [[[5, 6, 7]]]
    assert arrays["sequence_length"].tolist() == [[3]]
    assert arrays["output_log_probs"].tolist() == [[[-0.5]]]
    assert arrays["sequence_index"].tolist() == [[1]]
    cut = SampleOutput(0, token_ids=[7, 2], logprobs=logprobs, finish_reason=FinishReason.LENGTH)
    assert _one(asked, RequestOutput("r", [cut], True, 2))["output_ids"].tolist() == [[[5, 6, 7, 2]]]


def test_one_response_a_sample():
    samples = [SampleOutput(index, text=str(index)) for index in range(3)]
    responses = list(Answer(Asked(REQUEST), 0, ALL, 16).responses(RequestOutput("r", samples, False, 1)))
    assert [arrays["sequence_index"].item() for arrays in responses] == [0, 1, 2]
    assert [arrays["text_output"][0] for arrays in responses] == [b"0", b"1", b"2"]
    assert all("max_tokens_granted" not in arrays for arrays in responses), "said with the end"


def test_performance_counts_blocks_and_nanoseconds():
    times = RequestTimes(1.0, 2.0, 3.0, None, 4.0)
    output = RequestOutput("r", [SampleOutput(0)], False, 40, 32, times, num_blocks=5)
    arrays = _one(Asked(REQUEST, metrics=True), output)
    assert arrays["kv_cache_reused_blocks"].tolist() == [[2]]
    assert arrays["kv_cache_alloc_new_blocks"].tolist() == [[3]]
    assert arrays["kv_cache_alloc_total_blocks"].tolist() == [[5]]
    stamps = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    assert [arrays[name].item() for name in stamps] == [1e9, 2e9, 3e9, 4e9]
    assert {arrays[name].dtype for name in stamps} == {np.dtype(np.int64)}
    assert arrays["acceptance_rate"].tolist() == [[0.0]]


COUNTS = {"acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"}


def test_counts_of_drafts_are_each_samples_own_and_so_far():
    samples = [
        SampleOutput(0, num_draft_tokens=8, num_accepted_tokens=6),
        SampleOutput(1, num_draft_tokens=0, num_accepted_tokens=0),
    ]
    output = RequestOutput("r", samples, False, 1)
    first, second = Answer(Asked(REQUEST), 0, ALL, 16, speculates=True).responses(output)
    assert first["total_draft_tokens"].tolist() == [[8]]
    assert first["total_accepted_draft_tokens"].tolist() == [[6]]
    assert first["acceptance_rate"].tolist() == [[0.75]]
    assert second["acceptance_rate"].tolist() == [[0.0]]
    assert {first[name].dtype for name in COUNTS} == {np.dtype(np.int32), np.dtype(np.float32)}


def test_an_engine_that_does_not_speculate_counts_drafts_only_among_the_performance():
    output = RequestOutput("r", [SampleOutput(0)], False, 1)
    assert not COUNTS & set(_one(Asked(REQUEST), output))
    assert set(_one(Asked(REQUEST, metrics=True), output)) >= COUNTS
    [narrow] = Answer(Asked(REQUEST), 0, {"text_output"}, 16, speculates=True).responses(output)
    assert set(narrow) == {"text_output"}, "what a client does not take is not sent"
