"""OpenAI's API before the layouts of TensorRT-LLM in a real Triton; stand-ins that echo the prompt answer in its place.

A template that is nothing but the last message makes them say whatever a test wants said: calls of tools too.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from launcher.installation import find_installation
from launcher.local import TritonServer
from launcher.openai_front.server import FrontServer, front_of
from launcher.openai_front.settings import FrontSettings
from runtime.tokenizer import EngineTokenizer
from tests.support.tiny import write_tiny_llama, write_tokenizer
from tests.triton_repo.served import ENGINE, installation_with_stand_in
from triton_repo.layouts import inflight_batcher_llm, llmapi
from trtforge.recipe.schema import Recipe

pytestmark = pytest.mark.e2e

TEXT = "Grüße, 日本語 🙂 and words"
TOOL: Any = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
ARGUMENTS = '{"zone": "CET}"}'
#: format of calls → what a model of it says
SAYS = {
    "hermes": f'Wait. <tool_call>{{"name": "get_time", "arguments": {ARGUMENTS}}}</tool_call>',
    "llama3": f'{{"name": "get_time", "parameters": {ARGUMENTS}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "get_time", "arguments": {ARGUMENTS}}}]',
    "pythonic": '[get_time(zone="CET}")]',
}


def recipe(layout: str, target: str, triton: Any = None, **trtllm: Any) -> Recipe:
    limits = {"max_batch_size": 4, "max_num_tokens": 512, "max_seq_len": 512}
    build = {"target": target, "limits": limits, "trtllm": trtllm}
    served = {"layout": layout, **(triton or {})}
    return Recipe.model_validate({"name": "x", "model": {"source": "/m"}, "build": build, "triton": served})


def say(folder: Path) -> None:
    """A template that is its last message; with a tool it names none of its own."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = "{{ messages[-1]['content'] }}{# tools #}"
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def inflight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, TritonServer]]:
    folder = tmp_path_factory.mktemp("inflight") / "bundle-of-ensemble"
    folder.mkdir()
    write_tiny_llama(folder / "engine")
    say(folder / "engine")
    one = {"preprocessing_instances": 1, "postprocessing_instances": 1}
    made = recipe("inflight_batcher_llm", "trtllm-engine", one)
    inflight_batcher_llm.emit(made, ENGINE, folder / "repository")
    (folder / "backends").mkdir()
    installation = installation_with_stand_in(folder / "backends")
    log = folder / "server.log"
    with TritonServer(folder / "repository", log_path=log, installation=installation) as server:
        yield folder, server


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, TritonServer]]:
    folder = tmp_path_factory.mktemp("llmapi") / "bundle-of-llm"
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    write_tokenizer(checkpoint, 512, 1024)
    say(checkpoint)
    made = recipe("llmapi", "trtllm-llmapi", guided_decoding="xgrammar")
    llmapi.emit(made, folder / "repository", model_reference="../../checkpoint")
    fake = Path(__file__).parents[1] / "triton_repo" / "fake_trtllm" / "tensorrt_llm"
    into = folder / "repository" / "tensorrt_llm" / "1" / "tensorrt_llm"
    shutil.copytree(fake, into, ignore=lambda *_: ["__pycache__"])
    found = find_installation()
    installation = dataclasses.replace(found, environment={**found.environment, "PMI_RANK": "0"})
    log = folder / "server.log"
    with TritonServer(folder / "repository", log_path=log, installation=installation) as server:
        yield folder, server


@contextmanager
def fronted(where: tuple[Path, TritonServer], **settings: Any) -> Iterator[tuple[FrontServer, openai.OpenAI]]:
    folder, server = where
    front = front_of(folder / "repository", FrontSettings(port=0, **settings), bundle=folder)
    front.start(server.grpc_url)
    try:
        yield front, openai.OpenAI(base_url=f"http://{front.address}/v1", api_key="none", max_retries=0, timeout=60)
    finally:
        front.stop()


def chat(client: openai.OpenAI, model: str, text: str, **values: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(**{"model": model, "messages": messages, "max_tokens": 300, **values})


def read(chunks: Any) -> tuple[str, str, str, Any]:
    """Words, arguments and reason of a stream, and its usage."""
    words, arguments, reason, usage = "", "", "", None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            words += choice.delta.content or ""
            arguments += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or [])
            reason = choice.finish_reason or reason
    return words, arguments, reason, usage


def tokens_of(folder: Path, text: str) -> list[int]:
    return EngineTokenizer.load(folder).encode(text, add_special_tokens=False)


def test_bls_answers_with_exact_usage(inflight: tuple[Path, TritonServer]) -> None:
    """The stand-in repeats the prompt's tokens without an end: an answer has exactly as many as are asked for."""
    tokens = tokens_of(inflight[0] / "engine", TEXT)
    with fronted(inflight) as (_, client):
        assert client.models.list().data[0].id == "bundle-of-ensemble"
        for model in ("bundle-of-ensemble", "tensorrt_llm_bls"):
            answer = chat(client, model, TEXT, max_tokens=len(tokens))
            [choice] = answer.choices
            assert (choice.message.content, choice.finish_reason) == (TEXT, "length")
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(tokens), len(tokens))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        words, _, reason, usage = read(chat(client, model, TEXT, max_tokens=len(tokens), **options))
        assert (words, reason) == (TEXT, "length")
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(tokens), len(tokens))
        stopped = chat(client, model, "one two three four", stop=["hree"]).choices[0]
        assert (stopped.message.content, stopped.finish_reason) == ("one two t", "stop")
        completed = client.completions.create(model=model, prompt=[TEXT, "abc def"], max_tokens=4, echo=True)
        assert completed.choices[1].text.startswith("abc def") and completed.usage is not None
        by_tokens = client.completions.create(model=model, prompt=tokens, max_tokens=len(tokens))
        assert by_tokens.choices[0].text == TEXT


def test_a_bias_goes_to_bls_as_words(inflight: tuple[Path, TritonServer]) -> None:
    with fronted(inflight) as (_, client):
        [token] = tokens_of(inflight[0] / "engine", "e")
        answer = chat(client, "tensorrt_llm_bls", "abc", max_tokens=3, logit_bias={str(token): 5})
        assert answer.choices[0].message.content == "eee"
        lone = next(t for t in range(3, 259) if EngineTokenizer.load(inflight[0] / "engine").decode([t]) == "\ufffd")
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "tensorrt_llm_bls", "abc", logit_bias={str(lone): 5})
        assert (caught.value.code, caught.value.param) == ("TF-OAI-002", "logit_bias")


def test_what_bls_has_not_is_refused_by_name(inflight: tuple[Path, TritonServer]) -> None:
    with fronted(inflight) as (_, client):
        for values, param in (({"logprobs": True}, "logprobs"), ({"extra_body": {"min_p": 0.5}}, "min_p")):
            with pytest.raises(openai.BadRequestError) as caught:
                chat(client, "tensorrt_llm_bls", "abc", **values)
            assert (caught.value.code, caught.value.param) == ("TF-OAI-002", param)
        # this engine has no backend for guides, and would write on without a word
        form = {"type": "json_object"}
        required = {"tools": [TOOL], "tool_choice": "required"}
        for values in ({"response_format": form}, required):
            with pytest.raises(openai.BadRequestError) as caught:
                chat(client, "tensorrt_llm_bls", "abc", **values)
            assert caught.value.code == "TF-OAI-017"
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "tensorrt_llm_bls", "abc " * 600)
        assert caught.value.code in ("TF-OAI-012", "TF-RUN-051")


def test_the_llm_api_answers_with_exact_usage(api: tuple[Path, TritonServer]) -> None:
    """The stand-in writes a character a token."""
    tokens = tokens_of(api[0] / "checkpoint", TEXT)
    with fronted(api) as (_, client):
        answer = chat(client, "bundle-of-llm", TEXT)
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == (TEXT, "length")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(tokens), len(TEXT))
        assert answer.usage.prompt_tokens_details.cached_tokens == 32, "one block"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        words, _, reason, usage = read(chat(client, "tensorrt_llm", TEXT, **options))
        assert (words, reason, usage.completion_tokens) == (TEXT, "length", len(TEXT))
        two = chat(client, "tensorrt_llm", TEXT, n=2, max_tokens=4)
        assert [one.message.content for one in two.choices] == [TEXT[:4]] * 2
        assert two.usage.completion_tokens == 8
        stopped = chat(client, "tensorrt_llm", "one two three", stop="three").choices[0]
        assert (stopped.message.content, stopped.finish_reason) == ("one two ", "stop")


def test_a_schema_and_a_required_call_reach_the_llm_api(api: tuple[Path, TritonServer]) -> None:
    """The stand-in answers a guided request with its guide."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with fronted(api) as (_, client):
        told = json.loads(chat(client, "tensorrt_llm", "x", response_format=form).choices[0].message.content)
        assert json.loads(told["json"]) == schema
        answer = chat(client, "tensorrt_llm", "x", tools=[TOOL], tool_choice="required").choices[0]
        assert json.loads(json.loads(answer.message.content)["json"])["minItems"] == 1
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "tensorrt_llm", "x", logit_bias={"5": 1})
        assert (caught.value.code, caught.value.param) == ("TF-OAI-002", "logit_bias")


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_the_layout_does_not_know_is_the_front_s(
    inflight: tuple[Path, TritonServer], stream: bool
) -> None:
    """The stand-in writes some thousand tokens a second, and these are more than it has time for."""
    with fronted(inflight, timeout=0.02) as (_, client):
        answer = chat(client, "tensorrt_llm_bls", "words " * 20, max_tokens=450, stream=stream)
        choices = [answer.choices[0]] if not stream else [chunk.choices[0] for chunk in answer if chunk.choices]
        assert (choices[-1].finish_reason, choices[-1].stop_reason) == ("length", "timeout")
    with fronted(inflight, timeout=60) as (_, client):
        assert chat(client, "tensorrt_llm_bls", "abc", max_tokens=3).choices[0].finish_reason == "length"


@pytest.mark.parametrize("parser", SAYS)
@pytest.mark.parametrize("where", ["api", "inflight"])
def test_calls_that_a_model_decides_on(request: pytest.FixtureRequest, where: str, parser: str) -> None:
    running = request.getfixturevalue(where)
    text = SAYS[parser]
    folder = running[0] / ("engine" if where == "inflight" else "checkpoint")
    most = len(tokens_of(folder, text)) if where == "inflight" else 300
    with fronted(running, tool_parser=parser) as (_, client):
        model = client.models.list().data[0].id
        asked = {"tools": [TOOL], "max_tokens": most}
        [choice] = chat(client, model, text, **asked).choices
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {"zone": "CET}"})
        assert choice.message.content == ("Wait." if parser == "hermes" else None)
        words, arguments, _, _ = read(chat(client, model, text, stream=True, **asked))
        assert (words, json.loads(arguments)) == (choice.message.content or "", {"zone": "CET}"})
        [plain] = chat(client, model, text, max_tokens=most).choices
        assert (plain.message.content, plain.message.tool_calls) == (text, None), "no tools, no calls"
