"""Guided decoding: whatever the model would say, the text follows the grammar."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

import pytest

from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.offline import Engine
from runtime.request import FinishReason, Request
from runtime.sampling import GuidedDecoding, SamplingParams
from runtime.sampling.guided import GuidedState
from runtime.tokenizer import EngineTokenizer
from tests.support.simulation import SimulatedExecutor
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    tokenizer = EngineTokenizer.load(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", layers=1))
    executor = SimulatedExecutor(
        vocab_size=520,  # padded past the tokenizer's entries, as real models are
        num_blocks=256,
        limits=ExecutorLimits(8, 64, 256, 255),
        eos_token_ids=(2,),
    )
    return Engine(EngineCore(executor, tokenizer))


def test_json_schema(engine: Engine) -> None:
    params = SamplingParams(max_tokens=150, seed=3, n=4, guided=GuidedDecoding(json_schema=SCHEMA))
    for completion in engine.generate([[5, 6]], params)[0].completions:
        assert completion.finish_reason is FinishReason.STOP
        value = json.loads(completion.text)
        assert set(value) == {"name", "age"} and 0 <= value["age"] <= 99


@pytest.mark.parametrize("seed", range(4))
def test_regex_and_choice(engine: Engine, seed: int) -> None:
    pattern = r"[A-Z][a-z]{2,5} [0-9]{3}"
    greedy, sampled = (
        engine.generate([[seed]], SamplingParams(max_tokens=40, seed=s, guided=GuidedDecoding(regex=pattern)))[0]
        for s in (None, seed)
    )
    assert re.fullmatch(pattern, greedy.text) and re.fullmatch(pattern, sampled.text)
    choices = ('say "yes"', "no", "vielleicht ü")
    params = SamplingParams(max_tokens=40, seed=seed, guided=GuidedDecoding(choice=choices))
    assert engine.generate([[seed]], params)[0].text in choices


def test_guided_and_free_requests_share_a_batch(engine: Engine) -> None:
    free = SamplingParams(max_tokens=20)
    alone = engine.generate([[7, 8]], free)[0].token_ids
    guided = SamplingParams(max_tokens=20, guided=GuidedDecoding(regex="ab+c"))
    results = engine.generate([[7, 8], [9]], [free, guided])
    assert results[0].token_ids == alone and re.match("ab", results[1].text)


@pytest.mark.parametrize(
    "guide",
    [
        GuidedDecoding(regex="[a-"),
        GuidedDecoding(json_schema="{nonsense"),
        GuidedDecoding(json_schema={"type": "banana"}),
    ],
)
def test_bad_grammar_is_refused_when_added(engine: Engine, guide: GuidedDecoding) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-087"):
        engine.generate([[1]], SamplingParams(guided=guide))
    assert not engine.core.has_unfinished()


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ('x ::= "a"', "root"),
        ("root ::= lost", "not found"),
        ("root ::= root", "no text satisfies it"),
        ('root ::= "\\u12"', "escape"),
    ],
)
def test_whatever_the_converter_raises_is_said_of_the_grammar(engine: Engine, grammar: str, says: str) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-087") as caught:
        engine.generate([[1]], SamplingParams(guided=GuidedDecoding(grammar=grammar)))
    assert says in caught.value.message and "<state>" not in caught.value.message


@pytest.mark.parametrize(
    "guide", [GuidedDecoding(regex="a{100000000}"), GuidedDecoding(grammar='root ::= "a" root')], ids=str
)
def test_a_grammar_that_outgrows_its_limits_is_named_and_no_broken_weights(
    engine: Engine, guide: GuidedDecoding
) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-122") as caught:
        engine.generate([[1]], SamplingParams(max_tokens=8, guided=guide))
    assert "too many" in caught.value.message.lower() and "<state>" not in caught.value.message


class Spent:
    """A matcher that passed its limits: it says that it has stopped, and offers the end token."""

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "too many expressions constructed\n<state>\nTokens: a"

    def is_stopped(self) -> bool:
        return True

    def is_accepting(self) -> bool:
        return True

    def compute_bitmask(self) -> bytes:
        return b"\x04" + b"\x00" * 7

    def consume_token(self, token: int) -> bool:
        return False

    def deep_copy(self) -> Spent:
        return self


def test_a_grammar_that_passes_its_limits_does_not_pass_for_complete(engine: Engine) -> None:
    state = GuidedState(Spent(), (2,))
    assert not state.allowed(64).any() and not state.accept(5)
    core = engine.core
    tokenizer = core.tokenizer
    assert tokenizer is not None
    params = SamplingParams(max_tokens=5, guided=GuidedDecoding(regex="a"))
    prepared = core.prepare(Request(prompt_token_ids=[3], params=params))
    good = core.add_request(Request(prompt_token_ids=[4], params=SamplingParams(max_tokens=3)))
    bad = core.add_request(dataclasses.replace(prepared, guided=state))
    ends: dict[str, object] = {}
    while core.has_unfinished():
        for output in core.step():
            if output.finished:
                ends[output.request_id] = output.error and output.error["code"]
    assert ends == {good: None, bad: "TF-RUN-122"}


@pytest.mark.parametrize("more", [{"min_tokens": 8}, {"bad_words": ("aa",)}], ids=str)
def test_a_grammar_that_bans_contradict_is_the_client_s_and_no_broken_weights(
    engine: Engine, more: dict[str, Any]
) -> None:
    guide = GuidedDecoding(regex="aa")
    with pytest.raises(ForgeError, match="TF-RUN-136"):
        engine.generate([[1]], SamplingParams(max_tokens=9, guided=guide, **more))
    [free] = engine.generate([[1]], SamplingParams(max_tokens=9, guided=guide))
    assert free.text == "aa"


def test_nested_repetitions_unfold_when_the_request_is_made(engine: Engine) -> None:
    """On the client's thread, and within a bound: the library's own lets this one take four seconds a step."""
    assert engine.core.tokenizer is not None
    started = time.process_time()
    state = engine.core.tokenizer.guided(GuidedDecoding(regex="(a{1000}){1000}"), 520, (2,))
    mask = state.fork().allowed(520)
    assert mask.any() and time.process_time() - started < 3
