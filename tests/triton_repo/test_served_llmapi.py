"""The emitted llmapi repository in a real Triton server; a package of TensorRT-LLM's name answers in its place."""

import dataclasses
import json
import queue
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from launcher.installation import find_installation
from launcher.local import TritonServer
from tests.support.foreign_clients import generate
from tests.triton_repo.served import ask, tensors, text
from triton_repo.layouts import llmapi
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Recipe

pytestmark = pytest.mark.slow

MODEL = "tensorrt_llm"
PROMPT = "Grüße, 日本語 🙂 and words"


def server(folder, *, decoupled=True, parameters=None, model="../../checkpoint", tp=1):
    (folder / "checkpoint").mkdir()
    (folder / "adapters" / "fr").mkdir(parents=True)
    recipe = Recipe.model_validate(
        {
            "name": "x",
            "model": {"source": "/m"},
            "build": {
                "target": "trtllm-llmapi",
                "trtllm": {"lora": {}, "guided_decoding": "xgrammar"},
                "parallel": {"tp": tp},
            },
            "triton": {"layout": "llmapi", "decoupled": decoupled, "parameters": parameters or {}},
        }
    )
    llmapi.emit(recipe, folder / "repository", model_reference=model, adapters_reference="../../adapters")
    # Triton's Python runs isolated: it takes no PYTHONPATH, and looks beside model.py
    fake = Path(__file__).with_name("fake_trtllm") / "tensorrt_llm"
    shutil.copytree(fake, folder / "repository" / MODEL / "1" / "tensorrt_llm", ignore=lambda *_: ["__pycache__"])
    found = find_installation()
    installation = dataclasses.replace(found, environment={**found.environment, "PMI_RANK": "0"})
    return TritonServer(folder / "repository", log_path=folder / "server.log", installation=installation)


def sent(prompt=PROMPT, **values):
    return {"text_input": prompt, **values}


@pytest.fixture(scope="module")
def streaming(tmp_path_factory):
    with server(tmp_path_factory.mktemp("llmapi")) as running:
        yield running


def test_a_stream_joined_is_the_whole_answer(streaming):
    whole = ask(streaming.grpc_url, MODEL, sent(), batched=False)
    pieces = ask(streaming.grpc_url, MODEL, sent(streaming=True), batched=False)
    assert text(whole) == text(pieces) == PROMPT
    assert len(whole) == 1
    assert len(pieces) > 20
    assert all("\ufffd" not in piece.as_numpy("text_output")[0].decode() for piece in pieces)


def test_arguments_of_llm_are_those_of_model_yaml(streaming):
    seen = json.loads(text(ask(streaming.grpc_url, MODEL, sent("{arguments}"), batched=False)))
    assert Path(seen["model"]).is_absolute()
    assert Path(seen["model"]).name == "checkpoint"
    assert seen["tensor_parallel_size"] == 1
    assert "triton_config" not in seen
    assert seen["kv_cache_config"]["tokens_per_block"] == 32


@pytest.mark.parametrize("stream", [False, True])
def test_sampling_and_asked_for_outputs(streaming, stream):
    values = sent(
        "one two three four",
        streaming=stream,
        sampling_param_stop=["three"],
        return_finish_reason=True,
        return_stop_reason=True,
        return_cumulative_logprob=True,
        sampling_param_return_perf_metrics=True,
    )
    results = ask(streaming.grpc_url, MODEL, values, batched=False)
    assert text(results) == "one two "
    last = results[-1]
    assert last.as_numpy("finish_reason").tolist() == [b"stop"]
    assert last.as_numpy("stop_reason").tolist() == [b"three"]
    assert last.as_numpy("cumulative_logprob").tolist() == [-0.5]
    assert last.as_numpy("arrival_time_ns").tolist() == [10**9]
    assert last.as_numpy("kv_cache_hit_rate").tolist() == [0.25]
    assert last.as_numpy("total_draft_tokens").tolist() == [10]
    short = ask(streaming.grpc_url, MODEL, sent(sampling_param_max_tokens=4), batched=False)
    assert text(short) == PROMPT[:4]
    assert short[0].as_numpy("num_output_tokens").tolist() == [4]
    assert short[0].as_numpy("finish_reason") is None


def test_an_adapter_of_the_server_s_folder(streaming):
    lora = {"lora_id": np.array([3], dtype=np.uint64), "lora_name": "fr"}
    assert text(ask(streaming.grpc_url, MODEL, sent(**lora, lora_path="fr"), batched=False)) == "fr 3 fr"
    with pytest.raises(InferenceServerException, match="TF-TRI-082"):
        ask(streaming.grpc_url, MODEL, sent(**lora, lora_path="../checkpoint"), batched=False)


def test_a_salt_reaches_the_engine(streaming):
    assert text(ask(streaming.grpc_url, MODEL, sent(cache_salt="tenant ä"), batched=False)) == "salted tenant ä"
    assert text(ask(streaming.grpc_url, MODEL, sent(cache_salt=""), batched=False)) == PROMPT, "none at all"


def test_a_guide_reaches_the_engine(streaming):
    schema = '{"type": "object"}'
    guide = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": schema}
    assert json.loads(text(ask(streaming.grpc_url, MODEL, sent(**guide), batched=False))) == {"json": schema}
    with pytest.raises(InferenceServerException, match="TF-TRI-091"):
        ask(streaming.grpc_url, MODEL, sent(guided_decoding_guide_type="yaml"), batched=False)


def test_faults_are_answered_to_their_request(streaming):
    with pytest.raises(InferenceServerException, match="TF-TRI-080"):
        ask(streaming.grpc_url, MODEL, {"text_input": ["a", "b"]}, batched=False)
    with pytest.raises(InferenceServerException, match="TF-TRI-086"):
        ask(streaming.grpc_url, MODEL, sent(image_url=["https://example.org/x.png"]), batched=False)
    with pytest.raises(InferenceServerException, match=r"TF-TRI-085.*refused"):
        ask(streaming.grpc_url, MODEL, sent("fail"), batched=False)
    with pytest.raises(InferenceServerException, match="TF-TRI-088"):
        ask(streaming.grpc_url, MODEL, sent(stop=True), batched=False)
    with pytest.raises(InferenceServerException, match="TF-RUN-117: text_input is missing"):
        ask(streaming.grpc_url, MODEL, {"sampling_param_max_tokens": 3, "streaming": False}, batched=False)
    body = {"text_input": PROMPT, "sampling_param_max_token": 4}
    status, answer = generate(streaming.http_url, MODEL, body)
    assert status == 400
    assert "TF-RUN-106" in answer["error"]
    assert "did you mean 'sampling_param_max_tokens'" in answer["error"]
    assert text(ask(streaming.grpc_url, MODEL, sent(), batched=False)) == PROMPT


def test_a_running_request_is_ended_by_its_id(streaming):
    import queue

    events: queue.Queue = queue.Queue()
    slow = sent("x" * 500, streaming=True, sampling_param_temperature=9.0, return_finish_reason=True)
    slow["sampling_param_max_tokens"] = 500
    with (
        grpc.InferenceServerClient(streaming.grpc_url) as first,
        grpc.InferenceServerClient(streaming.grpc_url) as second,
    ):
        first.start_stream(callback=lambda result, error: events.put((result, error)))
        first.async_stream_infer(MODEL, tensors(slow, False), request_id="r1", enable_empty_final_response=True)
        events.get(timeout=30)
        second.start_stream(callback=lambda result, error: None)
        second.async_stream_infer(MODEL, tensors(sent(stop=True), False), request_id="r1")
        count, reason = 1, b""
        while True:
            result, error = events.get(timeout=30)
            assert error is None
            count += 1
            reason = result.as_numpy("finish_reason")[0]
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    assert reason == b"cancelled"
    assert count < 500


def test_tritons_own_timeout_ends_a_request(streaming):
    """With what it has, as far as the engine gives it."""
    events: queue.Queue = queue.Queue()
    slow = {"sampling_param_temperature": 9.0, "sampling_param_max_tokens": 200}
    values = tensors(sent("long " * 400, streaming=True, return_finish_reason=True, **slow), batched=False)
    with grpc.InferenceServerClient(streaming.grpc_url) as client:
        client.start_stream(callback=lambda result, error: events.put((result, error)))
        client.async_stream_infer(MODEL, values, timeout=150_000, enable_empty_final_response=True)
        reasons, final = [], False
        while not final:
            result, error = events.get(timeout=30)
            assert error is None, error
            final = result.get_response().parameters["triton_final_response"].bool_param
            if result.as_numpy("finish_reason") is not None:
                reasons.append(result.as_numpy("finish_reason")[0])
    assert reasons[-1] == b"timeout"


def test_a_source_of_adapters_alone_is_refused(streaming):
    with pytest.raises(InferenceServerException, match="TF-TRI-081"):
        ask(streaming.grpc_url, MODEL, sent(lora_ckpt_source="nemo"), batched=False)


def test_a_model_that_does_not_stream_answers_plain_requests(tmp_path):
    made = server(tmp_path, decoupled=False, parameters={"gpu_device_ids": "3"})
    with made as running, grpc.InferenceServerClient(running.grpc_url) as client:
        assert text([client.infer(MODEL, tensors(sent(), False))]) == PROMPT
        seen = json.loads(text([client.infer(MODEL, tensors(sent("{arguments}"), False))]))
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["gpus_per_node"]) == ("3", 1)
        with pytest.raises(InferenceServerException, match="TF-TRI-076"):
            client.infer(MODEL, tensors(sent(streaming=True), False))


def test_a_checkpoint_that_does_not_load_and_files_that_disagree_say_why(tmp_path):
    failing = server(tmp_path, model="explode")
    begin = time.monotonic()
    with pytest.raises(ForgeError) as caught, failing:
        pass
    assert "no such checkpoint" in (caught.value.why or "")
    assert time.monotonic() - begin < 60
    path = tmp_path / "repository" / MODEL / "1" / "model.yaml"
    path.write_text(path.read_text().replace("decoupled: true", "decoupled: false"))
    again = TritonServer(tmp_path / "repository", log_path=tmp_path / "again.log", installation=failing.installation)
    with pytest.raises(ForgeError) as caught, again:
        pass
    assert "TF-TRI-084" in (caught.value.why or "")


@pytest.mark.parametrize("prompt", ["die", "shut"])
def test_an_engine_that_died_ends_its_server(tmp_path, prompt):
    with server(tmp_path) as running:
        with pytest.raises(InferenceServerException, match=r"TF-TRI-085.*the executor"):
            ask(running.grpc_url, MODEL, sent(prompt), batched=False)
        for _ in range(200):
            if running.process.poll() is not None:
                break
            time.sleep(0.05)
        assert running.process.poll() is not None, "the server of a dead engine went on"
        assert f"the process of {MODEL} died" in running.log_reason()
