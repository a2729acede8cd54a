"""Clients that were written for TensorRT-LLM's Triton backend, on the native layout with the names that they fix."""

import shutil
import threading
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc

from launcher.client import StreamClient
from launcher.local import TritonServer
from tests.support.foreign_clients import PERFORMANCE, CoreBenchmark, EndToEndClient, TokenClient, generate
from triton_repo.layouts.native import emit

pytestmark = pytest.mark.e2e

PROMPTS = ("What is the capital of France?", "List three fruits")
TOKENS = 12
TEXT_MODELS = ("tiny", "ensemble", "tensorrt_llm_bls")


@pytest.fixture(scope="module")
def offline(tiny_engine):
    """Prompt → (its tokens, the answer's tokens, the answer's text) of the engine alone."""
    from runtime.offline import Engine
    from runtime.sampling.params import SamplingParams

    engine = Engine.load(tiny_engine)
    answers = {}
    for prompt in PROMPTS:
        [result] = engine.generate(prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0))
        answers[prompt] = engine.tokenizer.encode(prompt), result.token_ids, result.text
    return answers


def _serve(tiny_engine, folder, **options):
    shutil.copytree(tiny_engine, folder / "engine")
    emit(folder / "engine", folder / "repository", name="tiny", client_names=True, **options)
    return TritonServer(folder / "repository", log_path=folder / "server.log", exit_timeout=2)


@pytest.fixture(scope="module")
def server(tiny_engine, tmp_path_factory):
    with _serve(tiny_engine, tmp_path_factory.mktemp("decoupled")) as running:
        yield running


@pytest.fixture(scope="module")
def plain_server(tiny_engine, tmp_path_factory):
    with _serve(tiny_engine, tmp_path_factory.mktemp("plain"), decoupled=False) as running:
        yield running


@pytest.mark.parametrize("model", TEXT_MODELS)
class TestEndToEndClient:
    def test_checks_its_outputs(self, server, offline, model):
        """As ``--check-outputs``: with the prompt in whole answers, without it in streams and with its switch."""
        client = EndToEndClient(server.grpc_url, model)
        for prompt, (_, _, text) in offline.items():
            assert client.ask([prompt], output_len=TOKENS).texts == [[prompt + text]]
            assert client.ask([prompt], output_len=TOKENS, exclude_input_in_output=True).texts == [[text]]
            assert client.ask([prompt], output_len=TOKENS, streaming=True).texts == [[text]]

    def test_several_prompts_in_one_request(self, server, offline, model):
        client = EndToEndClient(server.grpc_url, model)
        texts = [[offline[prompt][2]] for prompt in PROMPTS]
        for streaming in (False, True):
            answer = client.ask(
                PROMPTS, output_len=TOKENS, batch_inputs=True, streaming=streaming, exclude_input_in_output=True
            )
            assert answer.errors == []
            assert answer.texts == texts

    def test_several_samples(self, server, offline, model):
        client = EndToEndClient(server.grpc_url, model)
        text = offline[PROMPTS[0]][2]
        for streaming in (False, True):
            common = {"output_len": TOKENS, "num_return_sequences": 3, "streaming": streaming}
            same = client.ask(PROMPTS[:1], **common, exclude_input_in_output=True)
            assert same.texts == [[text] * 3], "nothing asked for a choice"
            other = client.ask(PROMPTS[:1], **common, temperature=5.0, exclude_input_in_output=True)
            assert len(set(other.texts[0])) == 3
            both = client.ask(PROMPTS, **common, batch_inputs=True, exclude_input_in_output=True)
            assert both.texts == [[offline[prompt][2]] * 3 for prompt in PROMPTS]

    def test_performance_and_log_probabilities(self, server, model):
        client = EndToEndClient(server.grpc_url, model)
        long = "word " * 60
        client.ask([long], output_len=2)
        for streaming in (False, True):
            flags = ("return_perf_metrics", "return_log_probs")
            answer = client.ask([long], output_len=TOKENS, return_flags=flags, streaming=streaming)
            assert answer.errors == []
            metrics = answer.metrics[-1]
            assert set(metrics) == set(PERFORMANCE)
            assert metrics["kv_cache_reused_blocks"] > 0, "the first request left its blocks"
            new, reused = metrics["kv_cache_alloc_new_blocks"], metrics["kv_cache_reused_blocks"]
            assert metrics["kv_cache_alloc_total_blocks"] == new + reused
            stamps = [
                metrics[f"{name}_time_ns"] for name in ("arrival", "first_scheduled", "first_token", "last_token")
            ]
            assert stamps == sorted(stamps)
            assert 0 < stamps[0] < stamps[3]
            assert sum(array.shape[-1] for array in answer.log_probs) == TOKENS
            assert all((array <= 0).all() for array in answer.log_probs)

    def test_words_and_bias_and_ends(self, server, offline, model):
        client = EndToEndClient(server.grpc_url, model)
        prompt = PROMPTS[1]
        text = offline[prompt][2]
        common = {"output_len": TOKENS, "exclude_input_in_output": True}
        stopped = client.ask([prompt], **common, stop_words=[text[4:6]]).texts[0][0]
        assert stopped == text[: text.index(text[4:6])]
        assert text[:2] not in client.ask([prompt], **common, bad_words=[text[:2]]).texts[0][0]
        biased = client.ask([prompt], **common, embedding_bias=[(" the", 1000.0)])
        assert biased.texts == [[" the" * TOKENS]]
        penalized = client.ask([prompt], **common, repetition_penalty=5.0, presence_penalty=1.0, frequency_penalty=1.0)
        assert penalized.errors == []
        assert penalized.texts[0][0] != text
        first = offline[prompt][1][0]
        assert client.ask([prompt], **common, end_id=first, pad_id=first).texts == [[""]]

    @pytest.mark.parametrize(
        ("kind", "guide", "answers"),
        [
            ("regex", "(yes|no)", {"yes", "no"}),
            ("ebnf_grammar", 'root ::= "red" | "blue"', {"red", "blue"}),
            ("json_schema", '{"enum": ["a", "b"]}', {'"a"', '"b"'}),
        ],
    )
    def test_guided_decoding(self, server, model, kind, guide, answers):
        answer = EndToEndClient(server.grpc_url, model).ask(
            PROMPTS[:1],
            output_len=TOKENS,
            guided_decoding_guide_type=kind,
            guided_decoding_guide=guide,
            exclude_input_in_output=True,
        )
        assert answer.errors == []
        assert answer.texts[0][0] in answers

    @pytest.mark.parametrize(
        ("code", "name", "asked"),
        [
            ("TF-RUN-103", "beam", {"beam_width": 2}),
            ("TF-RUN-107", "return_context_logits", {"return_flags": ("return_context_logits",)}),
            ("TF-RUN-107", "return_generation_logits", {"return_flags": ("return_generation_logits",)}),
            ("TF-RUN-107", "lora_task_id", {"lora_task_id": 3}),
            (
                "TF-RUN-109",
                "guided_decoding_guide_type",
                {"guided_decoding_guide_type": "x", "guided_decoding_guide": "y"},
            ),
            ("TF-RUN-108", "guided_decoding_guide", {"guided_decoding_guide": "y"}),
        ],
    )
    def test_what_cannot_be_is_refused_by_name(self, server, model, code, name, asked):
        answer = EndToEndClient(server.grpc_url, model).ask(PROMPTS[:1], output_len=TOKENS, **asked)
        [error] = answer.errors
        assert code in error
        assert name in error

    def test_keys_of_generate(self, server, offline, model):
        prompt = PROMPTS[0]
        status, body = generate(server.http_url, model, {"text_input": prompt, "max_tokens": TOKENS, "temprature": 0.3})
        assert status == 400
        assert "TF-RUN-106" in body["error"]
        assert "did you mean 'temperature'" in body["error"]
        for missing, rest in (("max_tokens", {"text_input": prompt}), ("text_input", {"max_tokens": 3})):
            status, body = generate(server.http_url, model, {**rest, "top_k": 1, "temperature": 0.3})
            assert status == 400
            assert f"TF-RUN-117: {missing} is missing" in body["error"]
        status, body = generate(
            server.http_url, model, {"text_input": prompt, "max_tokens": 99999, "id": "x", "bad_words": [""]}
        )
        assert status == 200
        assert body["max_tokens_granted"] == body["num_output_tokens"] < 1024
        assert body["finish_reason"] == "length"
        status, events = generate(
            server.http_url, model, {"text_input": prompt, "max_tokens": TOKENS, "stream": True}, stream=True
        )
        assert status == 200
        assert "".join(event["text_output"] for event in events) == offline[prompt][2]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stop_request_of_the_same_id_ends_a_running_one(server, model):
    """Under every name, also where Triton does not tell the step of an ensemble that its client has gone."""
    long = {"text_input": PROMPTS[0], "max_tokens": 1000, "min_tokens": 1000, "stream": True}
    with StreamClient(server.grpc_url, model) as client, grpc.InferenceServerClient(server.grpc_url) as other:
        client.send(long, request_id=f"long-{model}")
        pieces = client.receive(30)
        next(iter(pieces))
        stop = grpc.InferInput("stop", [1, 1], "BOOL")
        stop.set_data_from_numpy(np.array([[True]]))
        other.start_stream(callback=lambda result, error: None)
        other.async_stream_infer(model, [stop], request_id=f"long-{model}")
        other.stop_stream()
        last = [result for _, result in pieces][-1]
    assert last.as_numpy("finish_reason").item() == b"cancelled"
    assert last.as_numpy("num_output_tokens").item() < 1000


class TestTokenClient:
    def test_streams_and_samples(self, server, offline):
        client = TokenClient(server.grpc_url)
        for ids, answer, _ in offline.values():
            expected = ids + answer
            streamed = client.ask(ids, request_output_len=TOKENS, streaming=True)
            assert streamed.errors == []
            assert streamed.tokens == [expected]
            twice = client.ask(ids, request_output_len=TOKENS, num_return_sequences=2)
            assert twice.tokens == [expected, expected]
            assert twice.lengths == [len(expected)] * 2
            excluded = client.ask(ids, request_output_len=TOKENS, num_return_sequences=1, exclude_input_in_output=True)
            assert excluded.tokens == [answer]

    def test_optional_outputs(self, server, offline):
        ids = offline[PROMPTS[0]][0]
        flags = ("return_log_probs", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens")
        answer = TokenClient(server.grpc_url).ask(ids, request_output_len=TOKENS, num_return_sequences=1, flags=flags)
        assert answer.errors == []
        [outputs] = answer.outputs
        assert outputs["output_log_probs"].shape == (1, TOKENS)
        assert outputs["cum_log_probs"].item() == pytest.approx(outputs["output_log_probs"].sum(), rel=1e-4)
        assert outputs["num_input_tokens"].item() == len(ids)
        assert outputs["num_output_tokens"].item() == TOKENS

    def test_requested_outputs_and_no_others(self, server, offline):
        names = ["output_ids", "sequence_length"]
        answer = TokenClient(server.grpc_url).ask(
            offline[PROMPTS[0]][0], request_output_len=TOKENS, streaming=True, requested_outputs=names
        )
        assert answer.errors == []
        assert {frozenset(found) for found in answer.names} == {frozenset(names)}

    def test_ends_early_by_a_stop_request(self, server, offline):
        ids = offline[PROMPTS[0]][0]
        answer = TokenClient(server.grpc_url).ask(
            ids, request_output_len=900, streaming=True, stop_after_ms=100, request_id="17"
        )
        assert answer.errors == []
        assert 0 < len(answer.tokens[0]) - len(ids) < 900

    @pytest.mark.parametrize(
        ("name", "asked"),
        [
            ("draft_input_ids", {"draft_ids": [5, 6]}),
            ("lora_task_id", {"lora_task_id": 2}),
            ("lookahead_window_size", {"lookahead": [3, 3, 3]}),
            ("return_context_logits", {"flags": ("return_context_logits",)}),
            ("top_p_decay", {"runtime_top_p_decay": 0.5}),
        ],
    )
    def test_what_cannot_be_is_refused_by_name(self, server, offline, name, asked):
        answer = TokenClient(server.grpc_url).ask(offline[PROMPTS[0]][0], num_return_sequences=1, **asked)
        [error] = answer.errors
        assert "TF-RUN-107" in error
        assert name in error


def test_the_core_models_benchmark(server, offline):
    prompts = [offline[prompt][0] for prompt in PROMPTS] * 8
    answers = CoreBenchmark(server.grpc_url).run(prompts, TOKENS, pad_id=2, end_id=2)
    for index, prompt in enumerate([*PROMPTS] * 8):
        ids, tokens, _ = offline[prompt]
        assert answers[str(index)] == ids + tokens


class TestNotDecoupled:
    """``triton.decoupled: false``: plain ``infer`` calls."""

    def test_the_token_clients_default(self, plain_server, offline):
        for ids, tokens, _ in offline.values():
            answer = TokenClient(plain_server.grpc_url).ask(ids, request_output_len=TOKENS)
            assert answer.errors == []
            assert answer.tokens == [ids + tokens]

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    def test_the_core_models_benchmark(self, plain_server, offline, protocol):
        url = plain_server.grpc_url if protocol == "grpc" else plain_server.http_url
        prompts = [offline[prompt][0] for prompt in PROMPTS] * 8
        benchmark = CoreBenchmark(url, protocol=protocol, decoupled=False)
        answers = benchmark.run(prompts, TOKENS, pad_id=2, end_id=2)
        for index, prompt in enumerate([*PROMPTS] * 8):
            ids, tokens, _ = offline[prompt]
            assert answers[str(index)] == ids + tokens

    @pytest.mark.parametrize("model", TEXT_MODELS)
    def test_whole_texts_and_no_streams(self, plain_server, offline, model):
        client = EndToEndClient(plain_server.grpc_url, model)
        prompt = PROMPTS[0]
        assert client.ask([prompt], output_len=TOKENS, exclude_input_in_output=True).texts == [[offline[prompt][2]]]
        for asked in ({"streaming": True}, {"num_return_sequences": 2}):
            [error] = client.ask([prompt], output_len=TOKENS, **asked).errors
            assert "TF-RUN-120" in error
        [error] = client.ask(PROMPTS, output_len=TOKENS, batch_inputs=True).errors
        assert "TF-RUN-120" in error


def _until_all_are_in(server, count):
    """A server that drains answers requests that come later with an empty 503."""
    url = f"http://{server.host}:{server.metrics_port}/metrics"
    end = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        gauges = ("trtforge_num_requests_running{", "trtforge_num_requests_waiting{")
        if sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(gauges)) >= count:
            return
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_end_of_a_drain_is_told_to_every_kind_of_client(tiny_engine, tmp_path):
    """Requests longer than the drain, more of them than run at once: each is told so before its connection ends."""
    server = _serve(tiny_engine, tmp_path)
    told: list[str] = []
    body = {"text_input": PROMPTS[0], "max_tokens": 1000, "min_tokens": 1000}
    with server:
        server.exit_timeout = 0

        def over_http(model: str, stream: bool) -> None:
            answer = generate(server.http_url, model, {**body, "stream": stream}, stream=stream)[1]
            told.append(answer[-1].get("error", "") if stream else answer.get("error", ""))

        def over_grpc(model: str, stream: bool) -> None:
            client = EndToEndClient(server.grpc_url, model)
            told.extend(client.ask(PROMPTS[:1], output_len=1000, streaming=stream, min_tokens=1000).errors)

        threads = [
            threading.Thread(target=ask, args=(model, stream), daemon=True)
            for ask in (over_http, over_grpc)
            for model in TEXT_MODELS
            for stream in (False, True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        _until_all_are_in(server, len(threads))
        begin = time.monotonic()
    for thread in threads:
        thread.join(timeout=30)
    assert time.monotonic() - begin < 30
    assert len(told) == len(threads), "a connection ended without a word"
    assert [text for text in told if "TF-RUN-057" not in text or "drain ended" not in text] == []
