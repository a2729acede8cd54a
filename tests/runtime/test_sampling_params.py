"""Every bad value is refused with its own code; defaults and the temperature rule."""

from __future__ import annotations

import math

import pytest

from runtime.sampling import GuidedDecoding, SamplingParams
from trtforge.ground.errors import ForgeError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(("max_tokens", v, "TF-RUN-070") for v in (0, -1, 1.5, "4", True, None)),
        *(("temperature", v, "TF-RUN-071") for v in (-0.1, NAN, INF, "hot", True, 10**400)),
        *(("top_k", v, "TF-RUN-072") for v in (-1, 1.0, NAN, True, 10**400)),
        *(("top_p", v, "TF-RUN-073") for v in (0.0, -0.1, 1.01, NAN, INF, None)),
        *(("min_p", v, "TF-RUN-074") for v in (-0.1, 1.1, NAN)),
        *(("repetition_penalty", v, "TF-RUN-075") for v in (0.0, -1.0, NAN, INF)),
        *(("presence_penalty", v, "TF-RUN-076") for v in (-2.1, 2.1, NAN)),
        *(("frequency_penalty", v, "TF-RUN-077") for v in (-2.1, 2.1, NAN)),
        *(("min_tokens", v, "TF-RUN-078") for v in (-1, 129, 0.5)),
        *(("stop", v, "TF-RUN-079") for v in (("",), (1,), 5, ("x" * 2000,), ("x",) * 257)),
        *(("stop_token_ids", v, "TF-RUN-080") for v in ((-1,), ("a",), (True,), 3)),
        *(("bad_words", v, "TF-RUN-081") for v in (("",), (None,), {}, ["x"] * 10_000)),
        *(("bad_token_sequences", v, "TF-RUN-081") for v in (((),), ((-1,),), "ab", 5, ((1,),) * 257)),
        *(("seed", v, "TF-RUN-082") for v in (-1, 2**64, 0.5, True)),
        *(("logprobs", v, "TF-RUN-083") for v in (-1, 65, True)),
        ("logprobs_mode", "cooked", "TF-RUN-083"),
        *(("n", v, "TF-RUN-084") for v in (0, -1, 1.0)),
        *(
            ("guided", v, "TF-RUN-086")
            for v in (5, {"regex": "a"}, GuidedDecoding(), GuidedDecoding(regex="a", choice=("b",)))
        ),
        ("ignore_eos", "yes", "TF-RUN-089"),
    ],
)
def test_bad_value_has_its_code(name: str, value: object, code: str) -> None:
    with pytest.raises(ForgeError) as caught:
        SamplingParams(**{name: value})
    error = caught.value
    assert error.code == code
    assert name in error.message and error.why and error.remedies


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ForgeError, match="TF-RUN-085") as caught:
        SamplingParams.from_mapping({"temprature": 1.0})
    assert "temperature" in caught.value.remedies[0]


def test_from_mapping_takes_what_json_gives() -> None:
    params = SamplingParams.from_mapping(
        {"max_tokens": 5, "stop": ["a", "b"], "bad_token_sequences": [[1, 2]], "guided": {"regex": "a+"}}
    )
    assert params.stop == ("a", "b") and params.bad_token_sequences == ((1, 2),)
    assert params.guided is not None and params.guided.regex == "a+"
    with pytest.raises(ForgeError, match="TF-RUN-086"):
        SamplingParams.from_mapping({"guided": {"xml": "a+"}})


def test_a_single_text_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)


@pytest.mark.parametrize(
    ("values", "greedy", "temperature"),
    [
        ({}, True, 0.0),
        ({"temperature": 0.0, "top_p": 0.5}, True, 0.0),
        ({"temperature": 0.7}, False, 0.7),
        ({"top_p": 0.9}, False, 1.0),
        ({"top_k": 40}, False, 1.0),
        ({"top_k": 1}, True, 0.0),
        ({"top_k": 1, "temperature": 2.0}, True, 2.0),
        ({"min_p": 0.1}, False, 1.0),
        ({"seed": 3}, False, 1.0),
    ],
)
def test_temperature_rule(values: dict[str, float], greedy: bool, temperature: float) -> None:
    params = SamplingParams(**values)
    assert params.greedy is greedy and params.effective_temperature == temperature


@pytest.mark.parametrize(
    "values", [{"choice": 5}, {"choice": "ab"}, {"choice": ("a", 1)}, {"regex": 5}, {"json_schema": 5}]
)
def test_a_grammar_of_a_wrong_type_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-086"):
        GuidedDecoding(**values)
    with pytest.raises(ForgeError, match="TF-RUN-086"):
        SamplingParams.from_mapping({"guided": values})


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "top_k", "seed", "n", "min_tokens", "logprobs", "top_p"])
def test_numbers_that_python_refuses_to_print_are_refused_with_a_code(name: str) -> None:
    for value in (10**5000, -(10**5000)):
        with pytest.raises(ForgeError, match="TF-RUN-0") as caught:
            SamplingParams(**{name: value})
        caught.value.to_json()
    with pytest.raises(ForgeError, match="TF-RUN-080"):
        SamplingParams(stop_token_ids=(10**5000,))


def test_too_many_words_are_refused_with_numbers() -> None:
    assert len(SamplingParams(stop=("x",) * 256, bad_words=("y",) * 256).stop) == 256
    with pytest.raises(ForgeError, match="TF-RUN-079") as caught:
        SamplingParams(stop=("x",) * 10_000)
    assert caught.value.numbers == {"entries": 10_000, "limit": 256}


def test_max_tokens_remedy_holds_for_servers_too() -> None:
    with pytest.raises(ForgeError, match="TF-RUN-070") as caught:
        SamplingParams(max_tokens=0)
    assert not any("leave" in remedy for remedy in caught.value.remedies)
