"""Keys that no model reads."""

import json

import pytest

from runtime import errors
from runtime.frontend.names import refuse_unknown, told
from runtime.sampling.params import SamplingParams
from trtforge.ground.errors import ForgeError

INPUTS = ("text_input", "max_tokens", "temperature", "top_k", "timeout_ms")


def _refused(also=(), **given):
    with pytest.raises(ForgeError) as caught:
        refuse_unknown(json.dumps(given), INPUTS, also=also)
    assert caught.value.code == "TF-RUN-106"
    return caught.value


@pytest.mark.parametrize(
    ("key", "meant"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("TopK", "top_k"), ("timeout", "timeout_ms")],
)
def test_the_nearest_name_is_offered(key, meant):
    error = _refused(**{key: 1})
    assert repr(key) in error.message
    assert error.remedies == [f"{key}: did you mean {meant!r}?"]


def test_a_key_like_nothing_gets_the_whole_list():
    [remedy] = _refused(qqq="x").remedies
    assert all(name in remedy for name in INPUTS)


def test_an_input_sent_as_a_parameter_is_refused_too():
    assert _refused(temperature=0.5).remedies == ["temperature is an input tensor, not a parameter"]


def test_every_unknown_key_is_named():
    error = _refused(temprature=1, max_token=2, id="x")
    assert "'temprature', 'max_token'" in error.message
    assert len(error.remedies) == 2


def test_what_triton_keeps_for_itself_passes():
    given = {
        "id": "7",
        "sequence_id": 1,
        "sequence_start": True,
        "headers": "x",
        "triton_enable_empty_final_response": True,
    }
    refuse_unknown(json.dumps(given), INPUTS)
    refuse_unknown("", INPUTS)
    refuse_unknown("{}", INPUTS)
    refuse_unknown('{"Streaming": true}', INPUTS, also={"Streaming"})
    _refused(Streaming=True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"n": 0}, "num_return_sequences is 0"),
        ({"stop": ("stop " * 300,)}, "stop_words is 'stop stop"),
        ({"stop": ["a"] * 300}, "stop_words has 300 entries"),
        ({"bad_words": ["a"] * 300}, "bad_words has 300 entries"),
        ({"stop_token_ids": (-5,)}, "end_id is -5"),
        ({"stop_token_sequences": [[-5]]}, "stop_words_list is -5"),
        ({"bad_token_sequences": [[-5]]}, "bad_words_list is -5"),
        ({"logit_bias": [(1, float("nan"))]}, "embedding_bias is nan"),
    ],
)
def test_a_refused_value_is_named_as_the_client_sent_it(given, named):
    with pytest.raises(ForgeError) as caught:
        SamplingParams(**given)
    inner = next(iter(given))
    line = told(caught.value.to_json())
    assert f"{caught.value.code}: {named}" in line
    assert f"give {inner} " not in line or inner in named
    assert f"leave {inner} out" not in line or inner in named


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.too_many_samples(9, 4), "num_return_sequences is 9"),
        (errors.token_out_of_range(512, 512, "logit_bias"), "token id 512 of embedding_bias"),
        (errors.token_out_of_range(512, 512, "stop_token_ids"), "token id 512 of end_id"),
        (errors.token_out_of_range(-2, 512), "token id -2 of the prompt"),
    ],
)
def test_what_the_engine_refuses_is_named_so_too(error, named):
    assert named in told(error.to_json())
