"""What clients send: honoured, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.openai_front.errors import ApiError
from launcher.openai_front.messages import require_answers, template_messages
from launcher.openai_front.parameters import (
    job_of,
    refuse_completion,
    refuse_not_served,
    stream_usage,
    template_variables,
)
from launcher.openai_front.schema import ChatRequest, CompletionRequest, parsed
from launcher.openai_front.tool_plan import plan_of
from launcher.openai_front.tools.choose import FORMATS
from tests.launcher.openai_front.support import deployment
from trtforge.targets.layouts import INFLIGHT_BATCHER, LLM_API

HELLO = [{"role": "user", "content": "hello"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TEMPLATE = "{{ tools }} <tool_call>"


def chat(**values: Any) -> ChatRequest:
    return parsed(ChatRequest, json.dumps({"model": "tiny", "messages": HELLO, **values}).encode())


def completion(**values: Any) -> CompletionRequest:
    return parsed(CompletionRequest, json.dumps({"model": "tiny", "prompt": "x", **values}).encode())


def job(request: Any, where: Any = None, **more: Any) -> Any:
    return job_of(request, where or deployment(), **{"bound": 4096, **more})


def refused(code: str, param: str | None, what: Any, *arguments: Any, **named: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        what(*arguments, **named)
    assert (caught.value.code, caught.value.param) == (code, param)
    return caught.value


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "TF-OAI-004", None),
        (b"[1]", "TF-OAI-004", None),
        (b"{", "TF-OAI-004", None),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "max_token": 3}', "TF-OAI-001", "max_token"),
        (b'{"model": "m"}', "TF-OAI-003", "messages"),
        (b'{"model": "m", "messages": []}', "TF-OAI-003", "messages"),
        (b'{"model": "m", "messages": [{"role": "king", "content": "x"}]}', "TF-OAI-003", "messages.0.role"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x", "y": 1}]}', "TF-OAI-001", "messages.0.y"),
        (b'{"model": "m", "messages": [{"role": "user", "content": 3}]}', "TF-OAI-003", "messages.0.content"),
        (b'{"model": "m", "messages": ["hello"]}', "TF-OAI-003", "messages.0"),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": "json"}',
            "TF-OAI-003",
            "response_format",
        ),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "stream_options": [1]}',
            "TF-OAI-003",
            "stream_options",
        ),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [null]}', "TF-OAI-003", "tools.0"),
    ],
)
def test_bodies_that_are_no_request(body: bytes, code: str, param: str | None) -> None:
    refused(code, param, parsed, ChatRequest, body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1), ("temperature", "hot"), ("temperature", True), ("top_p", 1.5), ("n", 0), ("n", 129),
        ("n", 1.5), ("presence_penalty", 3), ("frequency_penalty", -3), ("max_tokens", 0), ("seed", 2**64),
        ("max_completion_tokens", -1), ("stop", 3), ("logit_bias", {"5": 101}), ("top_logprobs", 21), ("stream", "yes"),
        ("response_format", {"type": "xml"}), ("tool_choice", "maybe"), ("user", 5),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{name: value})
    assert caught.value.code == "TF-OAI-003"
    assert str(caught.value.param).split(".")[0] == name


@pytest.mark.parametrize("name", ["str", "int", "NamedTool", "literalx", "a[b", "constrained-str"])
def test_an_unknown_name_is_told_even_where_it_looks_like_a_union_s_branch(name: str) -> None:
    refused("TF-OAI-001", name, chat, **{name: 1})


def test_a_name_as_long_as_a_body_is_not_repeated() -> None:
    error = refused("TF-OAI-001", "a" * 120, chat, **{"a" * 100_000: 1})
    assert len(error.message) < 400
    assert refused("TF-OAI-001", "''", chat, **{"": 1}).message.startswith("''")


def test_an_unknown_name_has_the_nearest_known_one() -> None:
    error = refused("TF-OAI-001", "temprature", chat, temprature=1)
    assert "did you mean temperature?" in error.message


@pytest.mark.parametrize(
    ("name", "asks", "neutral"),
    [
        ("functions", [{"name": "f"}], []), ("function_call", "auto", "none"), ("store", True, False),
        ("metadata", {"a": "b"}, {}), ("modalities", ["text", "audio"], ["text"]), ("audio", {"voice": "x"}, None),
        ("service_tier", "flex", "auto"), ("reasoning_effort", "high", None), ("prediction", {"type": "content"}, None),
        ("web_search_options", {"a": 1}, None), ("verbosity", "low", None), ("prompt_cache_key", "k", None),
        ("prompt_cache_retention", "24h", None), ("moderation", {"a": 1}, None),
    ],
)  # fmt: skip
def test_parameters_that_are_not_served_pass_only_where_they_ask_for_nothing(
    name: str, asks: Any, neutral: Any
) -> None:
    refused("TF-OAI-002", name, refuse_not_served, chat(**{name: asks}))
    refuse_not_served(chat(**{name: neutral}))


def test_defaults_are_openai_s_but_for_the_length() -> None:
    found = job(chat())
    assert (found.temperature, found.top_p, found.n, found.max_tokens, found.seed) == (1.0, 1.0, 1, 4096, None)
    assert job(completion(), bound=9).max_tokens == 9


def test_values_reach_the_job() -> None:
    found = job(
        chat(
            temperature=0.5, top_p=0.9, n=3, max_completion_tokens=7, stop=["a", "b"], seed=-1, presence_penalty=1,
            frequency_penalty=-1, logit_bias={"5": -100, "6": 0}, logprobs=True, stream=True, top_k=4, min_p=0.1,
            repetition_penalty=1.2, min_tokens=2, priority=1,
        )
    )  # fmt: skip
    assert (found.temperature, found.top_p, found.n, found.max_tokens) == (0.5, 0.9, 3, 7)
    assert (found.stop, found.seed, found.bias) == (("a", "b"), 2**64 - 1, {5: -100})
    assert (found.presence_penalty, found.frequency_penalty, found.log_probs, found.stream) == (1, -1, True, True)
    assert (found.top_k, found.min_p, found.repetition_penalty, found.min_tokens, found.priority) == (4, 0.1, 1.2, 2, 1)
    assert job(chat(presence_penalty=0, min_p=0)).presence_penalty is None


def test_what_contradicts_itself_is_refused() -> None:
    refused("TF-OAI-003", "max_completion_tokens", job, chat(max_tokens=3, max_completion_tokens=4))
    assert job(chat(max_tokens=3, max_completion_tokens=3)).max_tokens == 3
    refused("TF-OAI-003", "stop", job, chat(stop=list("abcde")))
    refused("TF-OAI-003", "stop", job, chat(stop=""))
    for token in ("five", "-1", "999999999", str(2**21), "1" * 400):
        refused("TF-OAI-003", "logit_bias", job, chat(logit_bias={token: 1}))
    refused("TF-OAI-003", "top_logprobs", job, chat(top_logprobs=0))
    refused("TF-OAI-002", "top_logprobs", job, chat(logprobs=True, top_logprobs=1))
    refused("TF-OAI-002", "logprobs", job, completion(logprobs=2))
    assert job(completion(logprobs=0)).log_probs


def test_what_a_layout_has_not_is_refused_there() -> None:
    for layout in (INFLIGHT_BATCHER, LLM_API):
        refused("TF-OAI-002", "logprobs", job, chat(logprobs=True), deployment(layout))
    refused("TF-OAI-002", "min_p", job, chat(min_p=0.1), deployment(INFLIGHT_BATCHER))
    refused("TF-OAI-002", "repetition_penalty", job, chat(repetition_penalty=1.1), deployment(LLM_API))
    refused("TF-OAI-027", "stream", job, chat(stream=True), deployment(decoupled=False))
    guide = plan_of(chat(response_format={"type": "json_object"}), "", None).guide
    unguided = deployment(LLM_API, inputs={"text_input": "BYTES"})
    refused("TF-OAI-017", "response_format", job, chat(), unguided, guide=guide)


def test_options_of_a_stream() -> None:
    assert stream_usage(chat(stream=True, stream_options={"include_usage": True}))
    assert not stream_usage(chat(stream=True))
    refused("TF-OAI-003", "stream_options", stream_usage, chat(stream_options={"include_usage": True}))
    obfuscated = chat(stream=True, stream_options={"include_obfuscation": True})
    refused("TF-OAI-002", "stream_options.include_obfuscation", stream_usage, obfuscated)


def test_completions_refuse_what_they_cannot() -> None:
    refused("TF-OAI-002", "suffix", refuse_completion, completion(suffix="end"), 1)
    refused("TF-OAI-002", "best_of", refuse_completion, completion(best_of=3), 1)
    refused("TF-OAI-002", "logprobs", refuse_completion, completion(echo=True, logprobs=0), 1)
    refuse_completion(completion(suffix="", best_of=2, n=2, echo=True), 2)
    refused("TF-OAI-003", "n", refuse_completion, completion(n=2), 2, 65)


@pytest.mark.parametrize(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "self"]
)
def test_variables_of_a_template_that_are_not_the_client_s(name: str) -> None:
    refused("TF-OAI-003", "chat_template_kwargs", template_variables, chat(chat_template_kwargs={name: "x"}))
    assert template_variables(chat(chat_template_kwargs={"enable_thinking": False})) == {"enable_thinking": False}
    assert template_variables(chat()) == {}


def test_messages_become_the_template_s() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ]
    )
    require_answers(request.messages)
    assert template_messages(request.messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "me"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "TF-OAI-013",
            "messages.0.content.0.type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "TF-OAI-014", "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "TF-OAI-014", "messages.0.content.0"),
        ({"role": "user"}, "TF-OAI-014", "messages.0"),
        ({"role": "tool", "content": "x"}, "TF-OAI-014", "messages.0"),
        ({"role": "function", "content": "x", "name": "f"}, "TF-OAI-002", "messages.0.role"),
        ({"role": "assistant", "content": "x", "audio": {"id": "1"}}, "TF-OAI-002", "messages.0.audio"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]},
            "TF-OAI-014",
            "messages.0.tool_calls.0",
        ),
    ],
)
def test_messages_that_cannot_be(message: Any, code: str, param: str) -> None:
    refused(code, param, template_messages, chat(messages=[message]).messages)


def test_an_answer_of_a_tool_that_nobody_called() -> None:
    request = chat(messages=[{"role": "tool", "content": "x", "tool_call_id": "9"}])
    refused("TF-OAI-003", "messages.0.tool_call_id", require_answers, request.messages)


HERMES = FORMATS["hermes"]
OBJECT = {"type": "json_object"}


def test_tools_are_offered_left_out_or_required() -> None:
    auto = plan_of(chat(tools=[TOOL]), TEMPLATE, HERMES)
    assert auto.tools == [TOOL] and auto.guide is None and auto.parser is not None and not auto.one
    none = plan_of(chat(tools=[TOOL], tool_choice="none"), TEMPLATE, HERMES)
    assert none.tools is None and none.parser is None
    required = plan_of(chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False), TEMPLATE, None)
    assert required.guide is not None and required.one and not required.named
    named = plan_of(chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}), TEMPLATE, HERMES)
    assert named.guide is not None and named.guide.schema["maxItems"] == 1 and named.named


@pytest.mark.parametrize(
    ("values", "template", "form", "code", "param"),
    [
        ({"tools": [TOOL]}, "no place", HERMES, "TF-OAI-015", "tools"),
        ({"tools": [TOOL]}, TEMPLATE, None, "TF-OAI-015", "tools"),
        ({"tool_choice": "required"}, TEMPLATE, HERMES, "TF-OAI-016", "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            TEMPLATE, HERMES, "TF-OAI-016", "tool_choice",
        ),
        ({"tools": [TOOL, TOOL]}, TEMPLATE, HERMES, "TF-OAI-003", "tools"),
        ({"tools": [{"type": "custom", "custom": {}}]}, TEMPLATE, HERMES, "TF-OAI-002", "tools.0"),
        ({"tools": [{"type": "function"}]}, TEMPLATE, HERMES, "TF-OAI-003", "tools.0.function"),
        ({"parallel_tool_calls": True}, TEMPLATE, HERMES, "TF-OAI-003", "parallel_tool_calls"),
        ({"tools": [TOOL], "response_format": OBJECT}, TEMPLATE, HERMES, "TF-OAI-003", "response_format"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            TEMPLATE, FORMATS["pythonic"], "TF-OAI-002", "tools.function.strict",
        ),
        ({"response_format": {"type": "json_schema"}}, "", None, "TF-OAI-003", "response_format.json_schema"),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_offered(values: Any, template: str, form: Any, code: str, param: str) -> None:
    refused(code, param, plan_of, chat(**values), template, form)


def test_strict_tools_hold_calls_to_their_schemas_while_the_model_chooses() -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    plan = plan_of(chat(tools=[strict]), TEMPLATE, HERMES)
    assert plan.guide is not None and "%json" in plan.guide.grammar and plan.parser is not None
    assert job(chat(), guide=plan.guide).guide.grammar
    refused("TF-OAI-002", "tools.function.strict", plan_of, chat(tools=[strict]), TEMPLATE, HERMES, lark=False)


def test_formats_of_an_answer() -> None:
    assert plan_of(chat(response_format={"type": "text"}), "", None).guide is None
    assert plan_of(chat(response_format={"type": "json_object"}), "", None).guide.schema == {"type": "object"}
    schema = {"type": "object", "properties": {}}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    assert plan_of(chat(response_format=asked), "", None).guide.schema == schema
