"""OpenAI's API before a real Triton on a small model, asked by the official client."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from evals.server.clients import open_server
from launcher.client import StreamClient
from launcher.local import TritonServer
from launcher.metrics_page import read_figures
from launcher.openai_front import protocol
from launcher.openai_front.server import FrontServer, front_of
from launcher.openai_front.settings import FrontSettings
from launcher.ports import pick_free
from runtime.tokenizer import EngineTokenizer
from triton_repo.layouts.native import emit
from trtforge.recipe.schema_serving import Serving
from trtforge.targets.layouts import NATIVE

pytestmark = pytest.mark.e2e

PROMPT = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
KEY = "a-key-of-twenty-four-bytes"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def bundle(tiny_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose template has a place for tools."""
    folder = tmp_path_factory.mktemp("openai")
    shutil.copytree(tiny_engine, folder / "engine")
    path = folder / "engine" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% if tools %}<|im_start|>{{ tools | tojson }}<|im_end|>\n{% endif %}" + config["chat_template"]
    )
    path.write_text(json.dumps(config))
    emit(folder / "engine", folder / "repository", name="tiny")
    return folder


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with TritonServer(bundle / "repository", log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@contextmanager
def fronted(bundle: Path, server: TritonServer, **settings: Any) -> Iterator[FrontServer]:
    front = front_of(bundle / "repository", FrontSettings(port=0, **settings), bundle=bundle)
    front.start(server.grpc_url, f"http://{server.host}:{server.metrics_port}/metrics")
    try:
        yield front
    finally:
        front.stop()


@pytest.fixture(scope="module")
def front(bundle: Path, server: TritonServer) -> Iterator[FrontServer]:
    with fronted(bundle, server) as running:
        yield running


def client_of(front: FrontServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{front.address}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(front: FrontServer) -> openai.OpenAI:
    return client_of(front)


@pytest.fixture(scope="module")
def tokenizer(bundle: Path) -> EngineTokenizer:
    return EngineTokenizer.load(bundle / "engine")


def direct(server: TritonServer, **values: Any) -> Any:
    """The same question to Triton itself."""
    with StreamClient(server.grpc_url, "tiny") as stream:
        answer = stream.ask(values)
    assert answer.error is None
    return answer


def chat(client: openai.OpenAI, **values: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 12, **values})


def raw(front: FrontServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and JSON of a request without the client."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{front.address}{path}", body, named)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read())


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def test_a_chat_says_what_the_server_says(
    client: openai.OpenAI, server: TritonServer, tokenizer: EngineTokenizer
) -> None:
    expected = direct(server, text_input=PROMPT, max_tokens=12, chat=True, temperature=0.0)
    answer = chat(client, temperature=0)
    [choice] = answer.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (expected.text, "assistant", "length")
    assert answer.usage.prompt_tokens == len(tokenizer.encode_chat(MESSAGES))
    assert answer.usage.completion_tokens == expected.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.system_fingerprint.startswith("fp_")
    assert choice.message.tool_calls is None and choice.logprobs is None


def test_a_stream_joined_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = chat(client, temperature=0)
    chunks = list(chat(client, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert len([text for text in texts if text]) > 2
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert not chunks[-1].choices and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.choices for chunk in chat(client, stream=True)), "usage nobody asked for"


def test_completions_of_texts_and_tokens(
    client: openai.OpenAI, server: TritonServer, tokenizer: EngineTokenizer
) -> None:
    prompts = [PROMPT, "one two"]
    expected = [direct(server, text_input=prompt, max_tokens=6, temperature=0.0).text for prompt in prompts]
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    answer = client.completions.create(prompt=prompts, **asked)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1]
    tokens = [tokenizer.encode(prompt) for prompt in prompts]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, tokens))
    assert answer.usage.completion_tokens == 12
    assert [choice.text for choice in client.completions.create(prompt=tokens, **asked).choices] == expected
    with pytest.raises(openai.BadRequestError, match="1048576 tokens"):
        client.completions.create(prompt=[5] * 2**20, **asked)
    echoed = client.completions.create(prompt=PROMPT, echo=True, **asked)
    assert echoed.choices[0].text == PROMPT + expected[0]
    streams: dict[int, str] = {}
    for chunk in client.completions.create(prompt=prompts, echo=True, stream=True, **asked):
        streams[chunk.choices[0].index] = streams.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert streams == {0: prompts[0] + expected[0], 1: prompts[1] + expected[1]}


def test_evaluation_asks_it_as_an_openai_server(front: FrontServer, server: TritonServer) -> None:
    found = open_server(front.address, NATIVE, None, "tiny")
    assert (found.kind, found.model) == ("openai", "tiny")
    expected = direct(server, text_input=PROMPT, max_tokens=6, temperature=0.0).text
    assert found.complete(PROMPT, 6) == "".join(found.stream(PROMPT, 6)) == expected
    assert found.prompt_log_probs([5, 6, 7]) is None


def test_samples_and_seeds(client: openai.OpenAI) -> None:
    def texts(**values: Any) -> list[str]:
        choices = chat(client, n=3, **values).choices
        assert [choice.index for choice in choices] == [0, 1, 2]
        return [choice.message.content for choice in choices]

    first = texts(seed=7)
    assert first == texts(seed=7)
    assert len(set(first)) == 3, "OpenAI's default temperature draws"
    assert first != texts(seed=8)
    assert texts(seed=-1) == texts(seed=2**64 - 1)
    streamed = ["", "", ""]
    for chunk in chat(client, n=3, seed=7, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == first
    usage = chat(client, n=3, max_tokens=5).usage
    assert usage.completion_tokens == 15


def test_stop_texts_end_an_answer(client: openai.OpenAI) -> None:
    whole = chat(client, seed=3, max_tokens=24).choices[0].message.content
    word = next(character for character in whole[3:] if character.isascii())
    for stop in (word, ["never there", word]):
        [choice] = chat(client, seed=3, max_tokens=24, stop=stop).choices
        assert choice.message.content == whole[: whole.index(word)]
        assert choice.finish_reason == "stop"


def test_log_probabilities_are_those_of_the_chosen_tokens(client: openai.OpenAI, server: TritonServer) -> None:
    expected = direct(server, text_input=PROMPT, max_tokens=8, chat=True, temperature=0.0, return_log_probs=True)
    [choice] = chat(client, temperature=0, max_tokens=8, logprobs=True).choices
    entries = choice.logprobs.content
    assert [entry.logprob for entry in entries] == pytest.approx(expected.log_probs, abs=1e-4)
    assert b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace") == choice.message.content
    assert all(entry.top_logprobs == [] for entry in entries)
    streamed = [
        entry.logprob
        for chunk in chat(client, temperature=0, max_tokens=8, logprobs=True, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert streamed == pytest.approx(expected.log_probs, abs=1e-4)
    legacy = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=0).choices[0]
    assert legacy.logprobs is not None
    assert "".join(legacy.logprobs.tokens or []) == legacy.text or "\ufffd" in legacy.text
    assert len(legacy.logprobs.token_logprobs or []) == len(legacy.logprobs.text_offset or []) == 5


def test_a_bias_bans_and_forces(client: openai.OpenAI, tokenizer: EngineTokenizer) -> None:
    [token] = tokenizer.encode(" the", add_special_tokens=False)[:1]
    answer = chat(client, max_tokens=4, logit_bias={str(token): 100})
    assert answer.choices[0].message.content == tokenizer.decode([token] * 4)


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "a long prompt that was never sent before " * 6}]
    first, second = (chat(client, messages=messages, max_tokens=2).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < 32
    assert second.prompt_tokens_details.cached_tokens > second.prompt_tokens / 2
    assert second.prompt_tokens_details.cached_tokens < second.prompt_tokens
    streamed = list(chat(client, messages=messages, stream=True, stream_options={"include_usage": True}))[-1].usage
    assert streamed.prompt_tokens_details.cached_tokens == second.prompt_tokens_details.cached_tokens


def test_a_salt_keeps_prefixes_apart(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "a prompt of one tenant that no other may find " * 5}]
    cached = [
        chat(client, messages=messages, extra_body={"cache_salt": salt}).usage.prompt_tokens_details.cached_tokens
        for salt in ("one", "one", "two")
    ]
    assert cached[0] == cached[2] == 0 and cached[1] > 0


def test_a_recipe_that_bounds_answers_bounds_those_that_name_no_length(
    bundle: Path, tmp_path: Path, tokenizer: EngineTokenizer
) -> None:
    shutil.copytree(bundle / "engine", tmp_path / "engine")
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny", serving=Serving(max_output_tokens=30))
    log, endless = tmp_path / "server.log", {"max_tokens": None, "logit_bias": {"2": -100, "0": -100}}
    with TritonServer(tmp_path / "repository", log_path=log) as server, fronted(tmp_path, server) as front:
        assert chat(client_of(front), **endless).usage.completion_tokens == 30
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client_of(front), max_tokens=31)
        assert (caught.value.code, caught.value.param) == ("TF-RUN-133", "max_tokens")


def test_an_answer_is_held_to_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema, "strict": True}}
    for seed in range(3):
        [choice] = chat(client, max_tokens=64, response_format=form, seed=seed).choices
        value = json.loads(choice.message.content)
        assert value["a"] in (1, 2) and isinstance(value["b"], bool) and choice.finish_reason == "stop"
    free = chat(client, max_tokens=64, response_format={"type": "json_object"}, seed=1).choices[0].message.content
    assert free.startswith("{")


@pytest.mark.parametrize("parser", ["llama3", "mistral", "hermes", "pythonic"])
def test_required_calls_of_each_format(bundle: Path, server: TritonServer, parser: str) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    with fronted(bundle, server, tool_parser=parser) as front:
        client = client_of(front)
        asked: dict[str, Any] = {"tools": [WEATHER, CLOCK], "max_tokens": 96, "parallel_tool_calls": False}
        for choice, reason in (("required", "tool_calls"), (named, "stop")):
            [answer] = chat(client, tool_choice=choice, seed=5, **asked).choices
            [call] = answer.message.tool_calls
            arguments = json.loads(call.function.arguments)
            assert answer.finish_reason == reason and answer.message.content is None
            if call.function.name == "get_weather":
                assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 9
            else:
                assert choice == "required" and arguments == {}
            assert len(call.id) == (9 if parser == "mistral" else 29)
            told = [
                delta
                for chunk in chat(client, tool_choice=choice, seed=5, stream=True, **asked)
                for delta in chunk.choices[0].delta.tool_calls or []
            ]
            assert "".join(delta.function.arguments or "" for delta in told) == call.function.arguments
            assert told[0].function.name == call.function.name and told[0].id
            if choice == named:
                assert len(told) > 3, "arguments come as they are written"
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        if parser in ("hermes", "llama3"):
            [held] = chat(client, tools=[strict], max_tokens=8, seed=1).choices
            assert held.message.content or held.message.tool_calls
        else:
            with pytest.raises(openai.BadRequestError, match="strict"):
                chat(client, tools=[strict])
        # what the model says freely is read by its format, and is words here
        [free] = chat(client, tools=[WEATHER], max_tokens=8, temperature=0).choices
        assert free.message.tool_calls is None and free.finish_reason == "length"
        assert "".join(
            chunk.choices[0].delta.content or ""
            for chunk in chat(client, tools=[WEATHER], max_tokens=8, temperature=0, stream=True)
        ) == free.message.content  # fmt: skip


def test_calls_and_their_answers_go_back_to_the_model(client: openai.OpenAI) -> None:
    messages = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    assert chat(client, messages=messages).choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("values", "kind", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "TF-OAI-007", "model"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "TF-OAI-001", "temprature"),
        ({"store": True}, openai.BadRequestError, "TF-OAI-002", "store"),
        ({"temperature": 9}, openai.BadRequestError, "TF-OAI-003", "temperature"),
        ({"messages": [{"role": "user", "content": "word " * 1000}]}, openai.BadRequestError, "TF-OAI-012", "messages"),
        ({"messages": [{"role": "user", "content": "w " * 9000}]}, openai.BadRequestError, "TF-RUN-051", "messages"),
        (
            {"extra_body": {"chat_template_kwargs": {"messages": []}}},
            openai.BadRequestError,
            "TF-OAI-003",
            "chat_template_kwargs",
        ),
        ({"n": 100}, openai.BadRequestError, "TF-RUN-055", "n"),
        ({"logit_bias": {"5000": 1}}, openai.BadRequestError, "TF-RUN-054", "logit_bias"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}},
            openai.BadRequestError,
            "TF-RUN-087",
            "response_format",
        ),
        ({"tools": [WEATHER]}, openai.BadRequestError, "TF-OAI-015", "tools"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(
    client: openai.OpenAI, values: Any, kind: type[openai.APIStatusError], code: str, param: str, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        chat(client, stream=stream, **values)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id


def test_bodies_and_routes_that_are_none(front: FrontServer) -> None:
    path, kind = "/v1/chat/completions", "application/json"
    assert raw(front, path, b"{", Content_Type=kind)[2]["error"]["code"] == "TF-OAI-004"
    assert raw(front, path, b"{}", Content_Type="text/plain")[0] == 415
    status, _, body = raw(front, path, b" " * (16 * 2**20 + 1), Content_Type=kind)
    assert (status, body["error"]["code"]) == (413, "TF-OAI-005")
    for other, number in (("/v1/embeddings", 404), ("/v1/chat/completions", 405), ("/v1/models/other", 404)):
        status, _, body = raw(front, other)
        assert status == number and body["error"]["code"] in ("TF-OAI-021", "TF-OAI-007")
    assert raw(front, "/v1/models")[2]["data"][0]["id"] == raw(front, "/v1/models/tiny")[2]["id"] == "tiny"


def test_heads_are_limited_in_size_and_time(front: FrontServer, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = front.address.split(":")

    def told(head: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head)
            try:
                return connection.recv(4096)
            except ConnectionResetError:
                return b""

    assert told(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(1000))
    assert b" 200 " not in told(b"GET /health HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n")
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    assert told(b"GET /health HTTP/1.1\r\nHost: ") == b""


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /v1/models/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_so_in_the_shape_of_other_errors(front: FrontServer, said: bytes) -> None:
    host, port = front.address.split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(said)
        while piece := connection.recv(4096):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("TF-OAI-033", "invalid_request_error")


def test_a_client_that_goes_while_it_sends_its_body_is_no_fault(
    bundle: Path, server: TritonServer, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    with fronted(bundle, server, log=log) as front:
        host, port = front.address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 500\r\n\r\n{"
            )
        until(lambda: bool(log.read_text()))
        line = json.loads(log.read_text())
        assert (line["status"], line.get("code")) == (499, None)


def test_a_head_without_an_end_is_given_up(front: FrontServer) -> None:
    host, port = front.address.split(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=20) as connection, pytest.raises(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        while sent < 64 * 2**20:
            connection.sendall(b"y" * 65536)
            sent += 65536
    assert sent < 64 * 2**20


def test_pieces_are_sent_at_once(front: FrontServer) -> None:
    """Without TCP_NODELAY a piece waits for the acknowledgement of the one before it: 40 ms in every stream."""
    host, port = front.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096)
        [accepted] = [
            one.transport.get_extra_info("socket")
            for one in front._server.server_state.connections
            if one.transport.get_extra_info("peername")[1] == connection.getsockname()[1]
        ]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_keys_let_clients_in(bundle: Path, server: TritonServer, tmp_path: Path) -> None:
    keys, log = tmp_path / "keys", tmp_path / "log.jsonl"
    keys.write_text(f"# of the team\nanother-key-of-some-length\n{KEY}\n")
    with fronted(bundle, server, keys=keys, log=log) as front:
        for wrong in ("none", KEY[:-1], KEY + "x"):
            with pytest.raises(openai.AuthenticationError) as caught:
                chat(client_of(front, wrong))
            assert caught.value.code == "TF-OAI-008"
        assert raw(front, "/v1/models")[0] == raw(front, "/metrics")[0] == 401
        assert raw(front, "/health")[0] == 200
        assert chat(client_of(front, KEY), user="u-17").usage.completion_tokens == 12
        assert client_of(front, KEY).models.list().data[0].id == "tiny"
        assert raw_page(front, KEY)["trtforge_openai_refusals_total"] == 5
    text = log.read_text()
    *refused, line = map(json.loads, text.splitlines())
    assert [entry["status"] for entry in refused] == [401] * 5
    assert (line["user"], line["status"], line["completion_tokens"]) == ("u-17", 200, 12)
    assert KEY not in text and PROMPT not in text


def test_more_than_run_at_once_are_sent_away(bundle: Path, server: TritonServer) -> None:
    with fronted(bundle, server, in_flight=1) as front:
        client = client_of(front)
        with chat(client, max_tokens=900, extra_body={"min_tokens": 900}, stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                chat(client)
            assert caught.value.code == "TF-OAI-009"
            assert int(caught.value.response.headers["retry-after"]) >= 1
        until(lambda: raw_page(front)["trtforge_openai_in_flight"] == 0)
        assert chat(client).usage.completion_tokens == 12


def raw_page(front: FrontServer, key: str = "none") -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    request = urllib.request.Request(f"http://{front.address}/metrics", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_a_full_queue_of_the_engine_is_429(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "bundle")
    model = tmp_path / "bundle" / "repository" / "tiny" / "1" / "model.py"
    model.write_text(
        model.read_text()
        + """
from runtime import errors

submit = AsyncEngine.submit_all

def full(self, pairs):
    if any(request.params.max_tokens == 77 for request, _ in pairs):
        raise errors.queue_full(4096, 4096)
    return submit(self, pairs)

AsyncEngine.submit_all = full
"""
    )
    log = tmp_path / "server.log"
    with TritonServer(tmp_path / "bundle" / "repository", log_path=log) as server, fronted(bundle, server) as front:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as caught:
                chat(client_of(front), max_tokens=77, stream=stream)
            assert caught.value.code == "TF-RUN-056" and int(caught.value.response.headers["retry-after"]) >= 1
        assert chat(client_of(front)).usage.completion_tokens == 12


def test_a_model_that_does_not_stream_answers_whole(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle / "engine", tmp_path / "engine")
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny", decoupled=False)
    log = tmp_path / "server.log"
    with TritonServer(tmp_path / "repository", log_path=log) as server, fronted(tmp_path, server) as front:
        client = client_of(front)
        answer = chat(client, n=2, seed=3)
        assert len({choice.message.content for choice in answer.choices}) == 2
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (24, "length")
        for values, code in (({"stream": True}, "TF-OAI-027"), ({"logit_bias": {"5000": 1}}, "TF-RUN-054")):
            with pytest.raises(openai.BadRequestError) as caught:
                chat(client, **values)
            assert caught.value.code == code
        server.kill()
        with pytest.raises(openai.InternalServerError) as gone:
            chat(client)
        assert (gone.value.status_code, gone.value.code) == (503, "TF-OAI-010")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_the_engine(bundle: Path, server: TritonServer, stream: bool) -> None:
    page = f"{server.host}:{server.metrics_port}"
    with fronted(bundle, server) as front:
        before = read_figures(page)["generation_tokens_total"]
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 990, "min_tokens": 990, "stream": stream, "n": 4}
        connection = http.client.HTTPConnection(front.address, timeout=20)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        until(lambda: read_figures(page)["generation_tokens_total"] > before)
        connection.close()
        until(lambda: raw_page(front)["trtforge_openai_in_flight"] == 0)
        assert raw_page(front)["trtforge_openai_disconnects_total"] == 1
        until(lambda: read_figures(page)["num_requests_running"] == 0)
        assert read_figures(page)["generation_tokens_total"] - before < 4 * 900, "it ran to its end"


def test_the_client_s_request_id_is_tritons(front: FrontServer, server: TritonServer) -> None:
    client = client_of(front)
    asked = {"max_tokens": 900, "stream": True, "extra_body": {"min_tokens": 900}}
    stream = chat(client, extra_headers={"X-Request-Id": "mine-1"}, **asked)
    assert stream.response.headers["x-request-id"] == "mine-1"
    pieces = iter(stream)
    assert next(pieces).id == "mine-1"
    url = f"http://{server.http_url}/v2/models/tiny/generate"
    body = json.dumps({"id": "mine-1", "text_input": "x", "max_tokens": 1, "stop": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=20):
        pass
    last = [chunk.choices[0] for chunk in pieces][-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", "cancelled")
    with pytest.raises(openai.BadRequestError, match="X-Request-Id"):
        chat(client, extra_headers={"X-Request-Id": "no spaces here"})


def test_a_deadline_cuts_an_answer(bundle: Path, server: TritonServer) -> None:
    with fronted(bundle, server, timeout=0.05) as front:
        [choice] = chat(client_of(front), max_tokens=990, extra_body={"min_tokens": 990}).choices
    assert (choice.finish_reason, choice.stop_reason) == ("length", "timeout")


def test_a_length_that_nobody_names_is_what_the_context_leaves(bundle: Path, server: TritonServer) -> None:
    endless = {"max_tokens": None, "temperature": 0, "logit_bias": {"2": -100, "0": -100}}
    with fronted(bundle, server, answer_tokens=2000) as front:
        usage = chat(client_of(front), **endless).usage
    assert usage.total_tokens == 1024
    with fronted(bundle, server, answer_tokens=9) as front:
        assert chat(client_of(front), **endless).usage.completion_tokens == 9


def test_health_and_metrics_are_tritons_and_its_own(front: FrontServer) -> None:
    status, _, body = raw(front, "/health")
    assert (status, body) == (200, {"live": True, "ready": True, "draining": False, "model": "tiny"})
    assert raw(front, "/health/live")[0] == raw(front, "/health/ready")[0] == 200
    page = raw_page(front)
    assert page["nv_inference_request_success_total"] > 0 and page["trtforge_generation_tokens_total"] > 0
    assert page["trtforge_openai_requests_total"] > 0 and page["trtforge_openai_tokens_total"] > 0
    assert page["trtforge_openai_time_to_first_token_seconds_count"] > 0


def test_a_front_that_drains_finishes_what_runs(bundle: Path, server: TritonServer) -> None:
    with fronted(bundle, server) as front:
        client = client_of(front)
        stream = iter(chat(client, max_tokens=300, stream=True, extra_body={"min_tokens": 300}))
        next(stream)
        front.drain()
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client)
        assert (caught.value.status_code, caught.value.code) == (503, "TF-OAI-011")
        assert raw(front, "/health")[0] == 503 and raw(front, "/health/live")[0] == 200
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"


def test_a_server_that_is_gone_is_503_and_comes_back(bundle: Path, tmp_path: Path) -> None:
    first = TritonServer(bundle / "repository", log_path=tmp_path / "first.log")
    with first, fronted(bundle, first) as front:
        client = client_of(front)
        stream = iter(chat(client, max_tokens=900, stream=True, extra_body={"min_tokens": 900}))
        next(stream)
        first.kill()
        with pytest.raises(openai.APIError) as broken:
            list(stream)
        assert "TF-OAI-010" in str(broken.value.body)
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client)
        assert (caught.value.status_code, caught.value.code) == (503, "TF-OAI-010")
        assert raw(front, "/health")[2]["live"] is False and raw(front, "/health/live")[0] == 503
        ports = {"http_port": first.http_port, "grpc_port": first.grpc_port, "metrics_port": first.metrics_port}
        with TritonServer(bundle / "repository", log_path=tmp_path / "second.log", **ports):
            until(lambda: raw(front, "/health")[0] == 200)
            assert chat(client).usage.completion_tokens == 12


def test_a_server_of_another_model_is_told(bundle: Path, server: TritonServer, tmp_path: Path) -> None:
    """Its tokens would mean something else, and nothing would say so."""
    shutil.copytree(bundle, tmp_path / "other")
    path = tmp_path / "other" / "repository" / "tiny" / "config.pbtxt"
    path.write_text(path.read_text().replace('"1024"', '"2048"'))
    with fronted(tmp_path / "other", server) as front:
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client_of(front))
        assert (caught.value.status_code, caught.value.code) == (503, "TF-OAI-032")
        assert "max_seq_len: '1024' there, '2048' here" in str(caught.value.body)
        assert raw(front, "/health")[0] == 503 and raw(front, "/health/live")[0] == 200


def test_serve_and_openai_are_commands(bundle: Path, tmp_path: Path) -> None:
    """``serve --openai-port`` drains with its server; ``openai`` stands before the same server on its own."""
    ports = dict(zip(("http", "grpc", "metrics", "openai"), pick_free("127.0.0.1", 4), strict=True))
    flags = [f"--{name}-port={port}" for name, port in ports.items()]
    log = tmp_path / "log.jsonl"
    program = [sys.executable, "-m", "trtforge"]
    command = [*program, "serve", str(bundle), *flags, "--json", "--no-verify", f"--openai-log={log}"]
    served = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    other: subprocess.Popen[str] | None = None
    try:
        assert served.stdout is not None
        about = json.loads(_document(served))
        assert about["openai"] == f"http://127.0.0.1:{ports['openai']}/v1"
        client = openai.OpenAI(base_url=about["openai"], api_key="none", max_retries=0, timeout=60)
        assert chat(client).usage.completion_tokens == 12
        command = [*program, "openai", "--server", f"127.0.0.1:{ports['grpc']}", "--bundle", str(bundle), "--port", "0"]
        other = subprocess.Popen(
            [*command, "--json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        alone = openai.OpenAI(
            base_url=json.loads(_document(other))["openai"], api_key="none", max_retries=0, timeout=60
        )
        assert chat(alone, temperature=0).choices == chat(client, temperature=0).choices
        other.send_signal(signal.SIGTERM)
        assert other.wait(timeout=30) == 0
        stream = iter(chat(client, max_tokens=400, stream=True, extra_body={"min_tokens": 400}))
        next(stream)
        served.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert served.wait(timeout=60) == 0, served.stderr and served.stderr.read()
    finally:
        for process in (served, other):
            if process is not None and process.poll() is None:
                process.kill()
    assert len(log.read_text().splitlines()) == 3


def _document(process: subprocess.Popen[str]) -> str:
    """The JSON document that a command prints when it is ready."""
    assert process.stdout is not None
    lines: list[str] = []

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            try:
                json.loads("".join(lines))
            except ValueError:
                continue
            return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(120)
    assert not reader.is_alive() and lines, process.stderr and process.stderr.read()
    return "".join(lines)
