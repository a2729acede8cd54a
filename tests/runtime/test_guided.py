"""Guided decoding: whatever the model would say, the text follows the grammar."""

from __future__ import annotations

import json
import re

import pytest

from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.offline import Engine
from runtime.request import FinishReason
from runtime.sampling import GuidedDecoding, SamplingParams
from runtime.simulation import SimulatedExecutor
from runtime.tokenizer import EngineTokenizer
from tests.support.tiny import write_tiny_llama
from trtforge.errors import ForgeError

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
