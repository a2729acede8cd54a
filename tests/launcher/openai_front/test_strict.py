"""Grammars of words or calls: what they let a model write, by the library that the engine asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.openai_front.schema import Function
from launcher.openai_front.tools.strict import Grammar, hermes, llama3

FUNCTIONS = [
    Function(
        name="f",
        strict=True,
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ),
    Function(name="g.h-1"),
]
ONE = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g.h-1", "arguments": {"x": [1]}}\n</tool_call>'


@pytest.fixture(scope="module")
def admits(tiny_checkpoint: Path) -> Callable[[str, str], tuple[bool, bool]]:
    """Whether a grammar lets a text be written, and whether the answer may end there."""
    llguidance = pytest.importorskip("llguidance")
    from llguidance.gbnf_to_lark import any_to_lark

    from runtime.tokenizer import EngineTokenizer

    text = (tiny_checkpoint / "tokenizer.json").read_text(encoding="utf-8")
    vocabulary = llguidance.LLTokenizer(text, n_vocab=512, eos_token=2)
    tokenizer = EngineTokenizer.load(tiny_checkpoint)

    def told(grammar: str, said: str) -> tuple[bool, bool]:
        lark = any_to_lark(grammar)  # as the engine takes it
        matcher = llguidance.LLMatcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = tokenizer.encode(said, add_special_tokens=False)
        admitted = matcher.validate_tokens(tokens)
        matcher.consume_tokens(tokens[:admitted])
        return admitted == len(tokens), matcher.is_accepting()

    return told


@pytest.mark.parametrize(
    ("grammar", "text", "whole"),
    [
        (hermes, "only words, 2 < 3 and <tool", True),
        (hermes, ONE, True),
        (hermes, f"Let me see. {ONE}\n{OTHER} Done.", True),
        (hermes, '<tool_call>\n{"name": "f", "arguments": {"a": "x"', False),
        (hermes, '<tool_call>\n{"name": "other"', False),
        (hermes, "<tool_call> words", False),
        (llama3, "only words, with {braces}", True),
        (llama3, '{"name": "f", "parameters": {"a": 5}}; {"name": "g.h-1", "parameters": {}}', True),
        (llama3, '{"name": "f", "parameters": {"a": "x"', False),
        (llama3, '{"answer"', False),
    ],
)
def test_calls_fit_their_schemas_and_words_are_free(
    admits: Callable[[str, str], tuple[bool, bool]], grammar: Grammar, text: str, whole: bool
) -> None:
    admitted, ends = admits(grammar(FUNCTIONS, False), text)
    assert admitted == whole
    assert ends or not whole


def test_one_call_is_one(admits: Callable[[str, str], tuple[bool, bool]]) -> None:
    assert admits(hermes(FUNCTIONS, True), f"{ONE} Done.") == (True, True)
    assert admits(llama3(FUNCTIONS, True), '{"name": "g.h-1", "parameters": {}}') == (True, True)
    assert not admits(llama3(FUNCTIONS, True), '{"name": "g.h-1", "parameters": {}};')[0]
