"""Keys that no model reads."""

import json

import pytest

from runtime.frontend.names import refuse_unknown
from trtforge.errors import ForgeError

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
