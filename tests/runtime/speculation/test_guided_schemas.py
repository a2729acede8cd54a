"""JSON schemas with drafts and without: the same texts, all of them valid by a validator that is not the grammar's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.guided_speculation import fault_of, make_schema, measure
from runtime.engine import EngineCore
from runtime.executors.torch_executor import TorchExecutor
from runtime.offline import Engine
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ngram import NgramDrafter
from runtime.speculation.speculator import Speculator
from runtime.tokenizer import EngineTokenizer

pytest.importorskip("llguidance")


def test_schemas_are_those_of_their_numbers_and_hardly_two_alike() -> None:
    schemas = [json.dumps(make_schema(number)) for number in range(1000)]
    assert schemas[7] == json.dumps(make_schema(7))
    assert len(set(schemas)) > 900


def test_a_wrong_answer_is_a_fault() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    assert fault_of(schema, '{"a": "x"}', "stop") is None
    for text, ended in (('{"a": "y"}', "stop"), ('{"a": "x"', "stop"), ('{"a": "x"}', "length"), ("{}", "stop")):
        assert fault_of(schema, text, ended) is not None, text


def test_schemas_are_answered_alike_with_drafts_and_without(tiny_engine: Path) -> None:
    executor = TorchExecutor(tiny_engine)
    speculator = Speculator(FixedPolicy(4), 4, lookup=NgramDrafter(4, 1))
    with Engine(EngineCore(executor, EngineTokenizer.load(tiny_engine), speculator=speculator)) as engine:
        figures = measure(engine, 40)
    assert figures["bars"] == dict.fromkeys(figures["bars"], True), figures["ways"]
    assert figures["same"] == 40 and figures["ways"]["with speculation"]["accepted"] > 0
