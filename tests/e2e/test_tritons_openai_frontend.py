"""The native layout behind Triton's own OpenAI frontend, by the requests that it makes."""

import json
import shutil
import time

import numpy as np
import pytest

from launcher.client import StreamClient
from launcher.local import TritonServer
from tests.support.foreign_clients import generate
from tests.support.tritons_openai_frontend import DEFAULT_MAX_TOKENS, REQUESTS, ask
from triton_repo.layouts.native import emit

pytestmark = pytest.mark.e2e

PROMPT = "What is the capital of France?"
MODELS = ("tiny", "ensemble", "tensorrt_llm_bls")


@pytest.fixture(scope="module")
def server(tiny_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("openai-frontend")
    shutil.copytree(tiny_engine, folder / "engine")
    emit(folder / "engine", folder / "repository", name="tiny", client_names=True)
    with TritonServer(folder / "repository", log_path=folder / "server.log", exit_timeout=2) as running:
        running.folder = folder
        yield running


@pytest.fixture(scope="module")
def tokenizer(tiny_engine):
    from runtime.tokenizer import EngineTokenizer

    return EngineTokenizer.load(tiny_engine)


@pytest.mark.parametrize("model", MODELS)
def test_every_request_of_its_is_accepted_and_counted_exactly(server, tokenizer, model):
    """All of them, whole and streamed; counts that add up over a stream, held against the log-probabilities' number."""
    prompt_tokens = len(tokenizer.encode(PROMPT))
    for name, request in REQUESTS.items():
        whole = ask(server.grpc_url, model, PROMPT, request, stream=False)
        assert whole.error is None, (name, whole.error)
        streamed = ask(server.grpc_url, model, PROMPT, request, stream=True)
        assert streamed.error is None, (name, streamed.error)
        assert whole.prompt_tokens == streamed.prompt_tokens == prompt_tokens, name
        most = request.get("max_tokens", DEFAULT_MAX_TOKENS)
        assert 0 < whole.completion_tokens <= most, name
        assert 0 < streamed.completion_tokens <= most, name
        if "stop" not in request and "tool" not in request and request["temperature"] == 0:
            assert streamed.completion_tokens == most == whole.completion_tokens, name
        if request["temperature"] == 0 or "seed" in request:
            assert streamed.text == whole.text.removeprefix(PROMPT if request.get("echo") else ""), name
            assert streamed.completion_tokens == whole.completion_tokens, name
        if request.get("echo"):
            assert whole.text.startswith(PROMPT), name
        if request.get("tool"):
            for text in (whole.text, streamed.text):
                assert text.lstrip()[:1] == "{", (name, text)


def test_counts_are_each_responses_own_only_where_they_are_asked_for(server):
    values = {"text_input": PROMPT, "max_tokens": 12, "stream": True}
    _, own = generate(server.http_url, "tiny", {**values, "return_num_output_tokens": True}, stream=True)
    _, so_far = generate(server.http_url, "tiny", values, stream=True)
    assert sum(event["num_output_tokens"] for event in own) == 12
    counts = [event["num_output_tokens"] for event in so_far]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_a_chat_comes_as_messages(server, tokenizer):
    """The same prompt as the template's text: the same tokens, the same answer."""
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": PROMPT},
    ]
    body = {"messages": json.dumps(messages), "max_tokens": 12}
    status, chat = generate(server.http_url, "tiny", body)
    assert status == 200, chat
    assert chat["num_input_tokens"] == len(tokenizer.encode_chat(messages))
    status, one = generate(server.http_url, "tiny", {"messages": json.dumps(messages[-1:]), "max_tokens": 12})
    status, same = generate(server.http_url, "tiny", {"text_input": PROMPT, "chat": True, "max_tokens": 12})
    assert (one["text_output"], one["num_input_tokens"]) == (same["text_output"], same["num_input_tokens"])
    for wrong, code in (
        ({"messages": "hello", "max_tokens": 3}, "TF-RUN-130"),
        ({"messages": "[]", "max_tokens": 3}, "TF-RUN-130"),
        ({"messages": '[{"content": "x"}]', "max_tokens": 3}, "TF-RUN-092"),
        ({**body, "text_input": "x"}, "TF-RUN-108"),
        ({**body, "chat": True}, "TF-RUN-108"),
        ({"stream": False}, "TF-RUN-117"),
        ({}, "request has 0 inputs"),  # Triton's own
    ):
        status, answer = generate(server.http_url, "tiny", wrong)
        assert status == 400, (wrong, answer)
        assert code in answer["error"], (wrong, answer)


def test_salts_keep_cached_prefixes_apart(server):
    body = {"text_input": "word " * 80 + "salted", "max_tokens": 2}
    first, second, other, again = (
        generate(server.http_url, "tiny", {**body, "cache_salt": salt})[1]["num_cached_tokens"]
        for salt in ("tenant 1", "tenant 1", "tenant 2", "tenant 2")
    )
    assert first == other == 0
    assert second == again > 0


def test_pieces_are_as_long_as_asked(server):
    values = {"text_input": PROMPT, "max_tokens": 21, "stream": True, "stream_interval": 5}
    _, events = generate(server.http_url, "tiny", values, stream=True)
    assert len(events) <= 6
    assert events[-1]["num_output_tokens"] == 21
    _, fine = generate(server.http_url, "tiny", {**values, "stream_interval": 1}, stream=True)
    assert "".join(event["text_output"] for event in fine) == "".join(event["text_output"] for event in events)


def test_tritons_own_timeout_ends_a_request_and_its_id_comes_back_and_is_logged(server):
    import tritonclient.grpc as grpc

    arrays = {"text_input": np.array([[PROMPT.encode()]], dtype=object), "max_tokens": np.array([[1000]], np.int32)}
    arrays |= {"min_tokens": np.array([[1000]], np.int32), "stream": np.array([[True]])}
    inputs = []
    for name, array in arrays.items():
        tensor = grpc.InferInput(name, list(array.shape), {"O": "BYTES", "i": "INT32", "b": "BOOL"}[array.dtype.kind])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    for model in ("tiny", "ensemble"):
        with StreamClient(server.grpc_url, model) as client:
            client._client.async_stream_infer(
                model, inputs, request_id="order 66", timeout=100_000, enable_empty_final_response=True
            )
            results = [result for _, result in client.receive(60)]
        assert results[-1].as_numpy("finish_reason").item() == b"timeout", model
        assert results[-1].as_numpy("num_output_tokens").item() < 1000
        assert {result.get_response().id for result in results} == {"order 66"}
    generate(server.http_url, "tiny", {"id": "order 67", "text_input": PROMPT, "max_tokens": 3, "temprature": 1})
    end = time.monotonic() + 20
    while "request 'order 67' refused: TF-RUN-106" not in (server.folder / "server.log").read_text():
        assert time.monotonic() < end, "the log lacks the refusal"
        time.sleep(0.05)
