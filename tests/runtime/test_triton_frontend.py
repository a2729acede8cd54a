import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.request import FinishReason, RequestOutput, SampleOutput
from runtime.triton_frontend import request_from_tensors, tensors_from_output
from trtforge.errors import ForgeError


def _text(*values):
    return np.array([[v.encode() if isinstance(v, str) else v for v in values]], dtype=object)


def _tensors(**more):
    return {"text_input": _text("Hi"), "max_tokens": np.array([[7]], dtype=np.int32), **more}


def _value(value, dtype):
    return np.array([[value]], dtype=dtype)


def test_defaults_are_greedy_and_not_streamed():
    request = request_from_tensors(_tensors())
    assert (request.prompt, request.messages, request.stream) == ("Hi", None, False)
    assert request.params.max_tokens == 7
    assert request.params.greedy
    assert request.params.logprobs is None


def test_a_seed_alone_stays_greedy_and_a_temperature_samples():
    assert request_from_tensors(_tensors(random_seed=_value(3, np.uint64))).params.greedy
    both = _tensors(random_seed=_value(3, np.uint64), seed=_value(4, np.uint64))
    assert request_from_tensors(both).params.seed == 4
    sampled = request_from_tensors(_tensors(random_seed=_value(3, np.uint64), temperature=_value(0.5, np.float32)))
    assert not sampled.params.greedy
    assert sampled.params.seed == 3


def test_chat_becomes_a_user_message():
    request = request_from_tensors(_tensors(chat=_value(True, bool)))
    assert request.prompt is None
    assert request.messages == [{"role": "user", "content": "Hi"}]


def test_words_drop_the_empty_strings_that_clients_send_for_none():
    request = request_from_tensors(_tensors(stop_words=_text("", "END"), bad_words=_text("")))
    assert request.params.stop == ("END",)
    assert request.params.bad_words == ()


def test_an_end_id_replaces_the_models_own():
    kept = request_from_tensors(_tensors(end_id=_value(2, np.int32)), eos_token_ids=(2,)).params
    assert (kept.ignore_eos, kept.stop_token_ids) == (False, ())
    other = request_from_tensors(_tensors(end_id=_value(9, np.int32)), eos_token_ids=(2,)).params
    assert (other.ignore_eos, other.stop_token_ids) == (True, (9,))


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("TF-RUN-101", {"text_input": _text("a", "b")}),
        ("TF-RUN-101", {"max_tokens": np.zeros((1, 0), dtype=np.int32)}),
        ("TF-RUN-102", {"text_input": _text(b"\xff\xfe")}),
        ("TF-RUN-102", {"stop_words": _text(b"\xff")}),
        ("TF-RUN-105", {"text_input": _text("")}),
        ("TF-RUN-103", {"beam_width": _value(2, np.int32)}),
        ("TF-RUN-104", {"timeout_ms": _value(0, np.int32)}),
    ],
)
def test_faults_have_codes(code, more):
    with pytest.raises(ForgeError) as caught:
        request_from_tensors(_tensors(**more))
    assert caught.value.code == code


@given(
    st.sampled_from(["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]),
    st.floats(width=32),
)
def test_any_float_gives_a_request_or_a_coded_error(name, value):
    try:
        request = request_from_tensors(_tensors(**{name: _value(value, np.float32)}))
    except ForgeError as error:
        assert error.code.startswith("TF-RUN-")
    else:
        assert getattr(request.params, name) == pytest.approx(value)


def test_response_tensors_have_the_batch_axis_and_the_prefix_once():
    sample = SampleOutput(0, text="ä", token_ids=[1], num_tokens=3, finish_reason=FinishReason.STOP)
    arrays = tensors_from_output(RequestOutput("r", [sample], True, 5), prefix="Hi ")
    assert arrays["text_output"].shape == (1, 1)
    assert arrays["text_output"][0, 0].decode() == "Hi ä"
    assert arrays["finish_reason"][0, 0] == b"stop"
    assert arrays["num_input_tokens"].tolist() == [[5]]
    assert arrays["num_output_tokens"].tolist() == [[3]]
    assert arrays["output_log_probs"].shape == (1, 1, 0)
