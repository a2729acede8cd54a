"""Biases of single tokens and stop words in tokens, and what an output says of its room and its blocks."""

import pytest

from runtime.engine import EngineCore
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sampling.params import SamplingParams
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError

PROMPT = [5, 6, 7]


class Result(GenerationResult):
    """A result that also keeps what its last output said of room and blocks."""

    room = blocks = 0


def run(core: EngineCore, **params: object) -> Result:
    core.add_request(Request(prompt_token_ids=PROMPT, params=SamplingParams(**params)))
    result = Result()
    while core.has_unfinished():
        for output in core.step():
            result.add(output)
            result.room, result.blocks = output.max_tokens, output.num_blocks
    return result


@pytest.fixture
def core() -> EngineCore:
    return EngineCore(SimulatedExecutor())


def test_a_bias_decides_and_leaves_other_requests_alone(core: EngineCore) -> None:
    plain = run(core, max_tokens=6).token_ids
    assert run(core, max_tokens=6, logit_bias={9: 1000.0}).token_ids == [9] * 6
    assert run(core, max_tokens=6, logit_bias=((plain[0], -1000.0),)).token_ids[0] != plain[0]
    assert run(core, max_tokens=6).token_ids == plain


def test_log_probabilities_are_the_models_own_not_the_biased_ones(core: EngineCore) -> None:
    biased = run(core, max_tokens=1, logit_bias={9: 1000.0}, logprobs=0).completions[0].logprobs[0]
    assert biased.token == 9
    assert biased.logprob < -0.1


def test_a_stop_sequence_ends_an_answer_and_stays_in_it(core: EngineCore) -> None:
    plain = run(core, max_tokens=12).token_ids
    stop = tuple(plain[3:5])
    result = run(core, max_tokens=12, stop_token_sequences=(stop,))
    assert result.token_ids == plain[:5]
    assert result.finish_reason is FinishReason.STOP
    later = run(core, max_tokens=12, stop_token_sequences=(stop,), min_tokens=8)
    assert len(later.token_ids) >= 8


def test_an_output_says_its_room_and_its_blocks(core: EngineCore) -> None:
    room = core.limits.max_seq_len - len(PROMPT)
    cut = run(core, max_tokens=10**6)
    assert (cut.room, len(cut.token_ids), cut.finish_reason) == (room, room, FinishReason.LENGTH)
    short = run(core, max_tokens=3)
    assert short.room == 3
    assert short.blocks == 2, "five computed tokens in blocks of four"


@pytest.mark.parametrize(
    ("code", "params"),
    [
        ("TF-RUN-118", {"logit_bias": 3}),
        ("TF-RUN-118", {"logit_bias": ((1, float("nan")),)}),
        ("TF-RUN-118", {"logit_bias": ((1, 1.0), (1, 2.0))}),
        ("TF-RUN-118", {"logit_bias": ((-1, 1.0),)}),
        ("TF-RUN-118", {"logit_bias": ((1, True),)}),
        ("TF-RUN-080", {"stop_token_sequences": "ab"}),
        ("TF-RUN-080", {"stop_token_sequences": ((),)}),
        ("TF-RUN-086", {"guided": {"grammar": 3}}),
    ],
)
def test_what_means_nothing_is_refused(code: str, params: dict) -> None:
    with pytest.raises(ForgeError) as caught:
        SamplingParams.from_mapping(params)
    assert caught.value.code == code


def test_tokens_beyond_the_vocabulary_are_refused(core: EngineCore) -> None:
    for params in ({"logit_bias": {10**4: 1.0}}, {"stop_token_sequences": ((10**4,),)}):
        with pytest.raises(ForgeError) as caught:
            core.prepare(Request(prompt_token_ids=PROMPT, params=SamplingParams(**params)))
        assert caught.value.code == "TF-RUN-054"
