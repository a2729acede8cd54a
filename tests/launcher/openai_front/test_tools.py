"""Parsers of tool calls: whatever pieces a text comes in, its calls and its words are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.openai_front.schema import Function
from launcher.openai_front.tools.choose import FORMATS, format_of
from launcher.openai_front.tools.events import CallDelta, Event, Numbering
from launcher.openai_front.tools.guided import GuidedParser, schema_of
from trtforge.ground.errors import ForgeError

NAMES = ("get_weather", "get_time", "f")
Call = tuple[str, str]
#: parameters that refer to themselves
NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf"}},
    "$defs": {"leaf": {"type": "string"}},
    "additionalProperties": False,
}


def read(name: str, pieces: Sequence[str]) -> tuple[str, list[Call], list[Event]]:
    """Words and calls of a text that comes in pieces."""
    form = FORMATS.get(name)
    parser = GuidedParser(Numbering(NAMES)) if form is None else form.parser(form.numbering(NAMES))
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    content = "".join(event for event in events if isinstance(event, str))
    calls: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallDelta):
            assert bool(event.id) == bool(event.name) == (event.index not in calls)
            entry = calls.setdefault(event.index, [event.name, ""])
            entry[1] += event.arguments
    assert list(calls) == list(range(len(calls)))
    return content, [(name, arguments) for name, arguments in calls.values()], events


PARIS = '{"city": "Paris, \\"France\\" {}]", "days": 2}'
#: format, text, the words that are left, the calls
CASES: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", "Just words.", "Just words.", []),
    (
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        "",
        [("get_weather", PARIS)],
    ),
    (
        "hermes",
        'Let me see.\n<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name": "get_time"}</tool_call>',
        "Let me see.",
        [("f", '{"a": 1}'), ("get_time", "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call> Done. ', " Done.", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, 2', "", [("f", '{"a": [1, 2')]),
    (
        "hermes",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", "a <tool_call> is a mark", "a <tool_call> is a mark", []),
    ("hermes", "2 < 3 and <tool", "2 < 3 and <tool", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Rome"}}', "", [("get_weather", '{"city": "Rome"}')]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
    (
        "llama3",
        '{"type": "function", "name": "f", "parameters": {"a": -1.5}}; {"name": "get_time", "parameters": {}}',
        "",
        [("f", '{"a": -1.5}'), ("get_time", "{}")],
    ),
    ("llama3", '{"count": 3, "name": "f", "arguments": {"x": true}}', "", [("f", '{"x": true}')]),
    ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    (
        "llama3",
        '{"name": "unknown", "parameters": {"a": 1}} and more',
        '{"name": "unknown", "parameters": {"a": 1}} and more',
        [],
    ),
    ("llama3", "  plain", "  plain", []),
    ("llama3", "", "", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "f", "arguments": {{}}}}]',
        "",
        [("get_weather", PARIS), ("f", "{}")],
    ),
    ("mistral", '[{"name": "f", "arguments": {"a": "x"}, "id": "abcdefghi"}]', "", [("f", '{"a": "x"}')]),
    ("mistral", 'get_weather{"city": "Rome"}', "", [("get_weather", '{"city": "Rome"}')]),
    (
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "}"}[TOOL_CALLS]f[ARGS]{}',
        "",
        [("get_weather", '{"city": "}"}'), ("f", "{}")],
    ),
    ("mistral", "get_weather is a function", "get_weather is a function", []),
    ("mistral", 'I look. [TOOL_CALLS][{"name": "f", "arguments": {}}]', "I look. ", [("f", "{}")]),
    ("mistral", "[1, 2, 3] are numbers", "[1, 2, 3] are numbers", []),
    ("mistral", "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
    ("mistral", "[TOOL", "[TOOL", []),
    (
        "pythonic",
        '[get_weather(city="Paris (FR)", days=2), get_time()]',
        "",
        [("get_weather", '{"city": "Paris (FR)", "days": 2}'), ("get_time", "{}")],
    ),
    (
        "pythonic",
        "<|python_start|>[f(a=[1, {'b': None}], c=true, d=-1)]<|python_end|>",
        "",
        [("f", '{"a": [1, {"b": null}], "c": true, "d": -1}')],
    ),
    ("pythonic", "[f(a=open('/etc/passwd'))]", "[f(a=open('/etc/passwd'))]", []),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[other(a=1)]", "[other(a=1)]", []),
    ("pythonic", "[]", "[]", []),
    ("pythonic", "See [1] for more", "See [1] for more", []),
    ("pythonic", "[f(a=1", "[f(a=1", []),
    ("required", '[{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
    (
        "required",
        '[ {"name": "get_time", "arguments": {} } , {"name": "f", "arguments": {"q": "]"}}]',
        "",
        [("get_time", "{}"), ("f", '{"q": "]"}')],
    ),
]


@pytest.mark.parametrize(("name", "text", "words", "calls"), CASES)
def test_calls_and_words_of_a_text(name: str, text: str, words: str, calls: list[Call]) -> None:
    for pieces in ([text], list(text), [text[at : at + 3] for at in range(0, len(text), 3)]):
        content, found, _ = read(name, pieces)
        assert (content, found) == (words, calls)


@given(st.data())
def test_pieces_make_no_difference(data: st.DataObject) -> None:
    name, text, words, calls = data.draw(st.sampled_from(CASES))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(name, pieces)[:2] == (words, calls)


_FRAGMENTS = (
    "<tool_call>",
    "</tool_call>",
    '{"name": "f"',
    ', "arguments": ',
    "{",
    "}",
    "[",
    "]",
    "[TOOL_CALLS]",
    "f(",
    ")",
    "a=1",
    ",",
    '"',
    "\\",
    " ",
    "f",
    "<|python_tag|>",
    "null",
    "words",
    ";",
    "é",
)


@given(st.sampled_from([*FORMATS, "required"]), st.lists(st.sampled_from(_FRAGMENTS), max_size=24))
def test_no_text_breaks_a_parser(name: str, fragments: list[str]) -> None:
    whole = read(name, ["".join(fragments)])[:2]
    assert read(name, fragments)[:2] == whole
    assert read(name, list("".join(fragments)))[:2] == whole
    if not whole[1]:  # what is no call is the answer, whole
        assert whole[0].strip() == "".join(fragments).strip()


def test_arguments_come_before_the_call_is_complete() -> None:
    _, _, events = read("hermes", ['<tool_call>{"name": "f", "arguments": {"a"', ': "long', '"}}</tool_call>'])
    assert [event.arguments for event in events if isinstance(event, CallDelta)] == ['{"a"', ': "long', '"}']


def test_identifiers_are_those_that_the_templates_take_back() -> None:
    def identifier(name: str) -> str:
        text = {"mistral": '[TOOL_CALLS][{"name": "f"}]', "hermes": '<tool_call>{"name": "f"}'}[name]
        return next(event.id for event in read(name, [text])[2] if isinstance(event, CallDelta))

    assert re.fullmatch(r"[A-Za-z0-9]{9}", identifier("mistral"))
    assert re.fullmatch(r"call_[0-9a-f]{24}", identifier("hermes"))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("… {{ '<tool_call>' }} …", "hermes"),
        ("… [TOOL_CALLS] …", "mistral"),
        ('… {"name": function name, "parameters": dictionary …', "llama3"),
        ("… [func_name1(params_name1=params_value1 …", "pythonic"),
        ("{{ messages[0].content }}", None),
        ("", None),
    ],
)
def test_the_format_is_the_templates(template: str, name: str | None) -> None:
    assert format_of(template) is (None if name is None else FORMATS[name])


def test_a_format_may_be_named() -> None:
    assert format_of("<tool_call>", "pythonic") is FORMATS["pythonic"]
    with pytest.raises(ForgeError, match="TF-OAI-026") as caught:
        format_of("", "lama3")
    assert caught.value.remedies == ["--tool-parser llama3"]


def test_a_schema_of_calls_holds_every_function_and_its_own_references() -> None:
    node = {"$schema": "x", **NODE}
    schema = schema_of([Function(name="f", parameters=node), Function(name="g")], one=True)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]] == ["f", "g"]
    moved = schema["$defs"]["parameters_0"]
    assert moved["properties"]["next"]["$ref"] == "#/$defs/parameters_0"
    assert moved["properties"]["leaf"]["$ref"] == "#/$defs/parameters_0/$defs/leaf"
    assert schema["$defs"]["parameters_1"]["additionalProperties"] is False
    assert "maxItems" not in schema_of([Function(name="g")], one=False)
    json.dumps(schema)


@pytest.mark.parametrize("arguments", ['{"next": {"next": {}}}', '{"leaf": "x"}'])
def test_the_schema_compiles_and_takes_its_calls(arguments: str) -> None:
    llguidance = pytest.importorskip("llguidance")
    schema = schema_of([Function(name="f", parameters=NODE)], one=True)
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    assert not llguidance.LLMatcher.validate_grammar(grammar)
    assert read("required", [f'[{{"name": "f", "arguments": {arguments}}}]'])[1] == [("f", arguments)]
