"""Jobs as each layout's tensors, and responses as pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.openai_front.deployment import NEEDED, read_deployment
from launcher.openai_front.errors import ApiError, of_triton
from launcher.openai_front.job import Guide, Job, Prompt
from launcher.openai_front.names import NAMES
from launcher.openai_front.wire import Reader, inputs, outputs, tensors
from tests.launcher.openai_front.support import TABLES, deployment
from triton_repo.layouts.native import emit
from trtforge.ground.errors import ForgeError
from trtforge.targets.layouts import INFLIGHT_BATCHER, LAYOUTS, LLM_API, NATIVE

PROMPT = Prompt([5, 6, 7], "the text")


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row.layout.name)
def test_every_name_is_one_of_the_layouts_own_table(row: Any) -> None:
    takes, gives = ({tensor.name for tensor in table} for table in TABLES[row.layout.name])
    assert {*row.inputs.values(), *row.switches.values()} <= takes
    assert {*row.outputs.values()} <= gives
    assert set(NEEDED) <= set(row.outputs)


def test_every_layout_has_its_names() -> None:
    assert [row.layout for row in NAMES] == list(LAYOUTS.values())


def test_a_plain_job_of_each_layout() -> None:
    job = Job(8, seed=3, stop=("x",), n=2, presence_penalty=0.5)
    native = tensors(deployment(), job, PROMPT, {})
    assert native == {
        "max_tokens": 8, "stream": False, "input_ids": [5, 6, 7], "exclude_input_in_output": True, "temperature": 1.0,
        "top_p": 1.0, "presence_penalty": 0.5, "seed": 3, "num_return_sequences": 2, "stop_words": ["x"],
    }  # fmt: skip
    earlier = deployment(outputs=frozenset({*deployment().outputs} - {"num_cached_tokens"}))
    assert tensors(earlier, job, PROMPT, {}) == native | {"return_perf_metrics": True}
    ensemble = tensors(deployment(INFLIGHT_BATCHER), job, PROMPT, {})
    assert ensemble["text_input"] == "the text" and "input_ids" not in ensemble
    api = tensors(deployment(LLM_API), Job(8, seed=3, stop=("x",)), PROMPT, {})
    assert api["sampling_param_stop"] == ["x"] and api["return_finish_reason"] is True
    assert api["sampling_param_return_perf_metrics"] is True


@pytest.mark.parametrize("job", [Job(1, temperature=0), Job(1, top_p=0), Job(1, top_k=1)])
def test_greedy_is_greedy_in_every_layout(job: Job) -> None:
    """``temperature`` 0 takes the likeliest token here; TensorRT-LLM has one candidate for that."""
    assert tensors(deployment(), job, PROMPT, {})["temperature"] == 0.0
    for layout, name in ((INFLIGHT_BATCHER, "top_k"), (LLM_API, "sampling_param_top_k")):
        found = tensors(deployment(layout), job, PROMPT, {})
        assert found[name] == 1 and not {"temperature", "top_p", "sampling_param_temperature"} & set(found)


def test_a_guide_is_compact_where_llguidance_reads_it() -> None:
    job = Job(1, guide=Guide({"type": "object"}))
    native = tensors(deployment(), job, PROMPT, {})
    assert native["guided_decoding_guide_type"] == "json_schema"
    assert '"whitespace_flexible": false' in native["guided_decoding_guide"]
    assert tensors(deployment(LLM_API), job, PROMPT, {})["guided_decoding_guide"] == '{"type": "object"}'


def test_a_bias_is_a_vector_or_words() -> None:
    job = Job(1, bias={4: -100.0, 2: 1.5})
    assert tensors(deployment(), job, PROMPT, {})["embedding_bias"].tolist() == [0, 0, 1.5, 0, -100]
    words = tensors(deployment(INFLIGHT_BATCHER), job, PROMPT, {"a": -100.0, "b": 1.5})
    assert words["embedding_bias_words"] == ["a", "b"] and words["embedding_bias_weights"] == [-100.0, 1.5]
    with pytest.raises(ApiError) as caught:
        tensors(deployment(LLM_API), job, PROMPT, {})
    assert (caught.value.code, caught.value.param) == ("TF-OAI-002", "logit_bias")


def test_what_is_sent_has_the_tensors_types_and_shapes() -> None:
    made = inputs(deployment(), tensors(deployment(), Job(8, stop=("é", "b")), PROMPT, {}))
    shapes = {tensor.name(): (tensor.datatype(), tensor.shape()) for tensor in made}
    assert shapes["input_ids"] == ("INT32", [1, 3])
    assert shapes["stop_words"] == ("BYTES", [1, 2])
    assert shapes["max_tokens"] == ("INT32", [1, 1])
    api = deployment(LLM_API)
    assert {t.name(): t.shape() for t in inputs(api, tensors(api, Job(8), PROMPT, {}))}["text_input"] == [1]


def test_only_what_is_read_is_asked_for() -> None:
    def names(job: Job, **changes: Any) -> set[str]:
        return {output.name() for output in outputs(deployment(**changes), job)}

    plain = {"text_output", "finish_reason", "num_output_tokens", "num_cached_tokens"}
    assert names(Job(1)) == names(Job(1), block_size=None) == plain
    assert names(Job(1, n=2, log_probs=True)) == plain | {"sequence_index", "output_ids", "output_log_probs"}
    earlier = frozenset({*deployment().outputs} - {"num_cached_tokens"})  # of repositories written before it was there
    counts_blocks = plain - {"num_cached_tokens"} | {"kv_cache_reused_blocks"}
    assert names(Job(1), outputs=earlier) == counts_blocks
    assert names(Job(1), outputs=earlier, block_size=None) == counts_blocks - {"kv_cache_reused_blocks"}


def test_a_response_becomes_a_piece() -> None:
    from tritonclient.grpc import service_pb2 as pb

    response = pb.ModelInferResponse()
    for name, kind, raw in (
        ("text_output", "BYTES", b"\x03\x00\x00\x00\xc3\xa9x"),
        ("finish_reason", "BYTES", b"\x00\x00\x00\x00"),
        ("num_output_tokens", "INT32", np.int32(7).tobytes()),
        ("kv_cache_reused_blocks", "INT32", np.int32(3).tobytes()),
        ("output_ids", "INT32", np.array([4, 5], np.int32).tobytes()),
        ("output_log_probs", "FP32", np.array([-0.5, -1], np.float32).tobytes()),
        ("unasked", "FP32", b""),
    ):
        response.outputs.add(name=name, datatype=kind)
        response.raw_output_contents.append(raw)
    earlier = deployment(outputs=frozenset({*deployment().outputs} - {"num_cached_tokens"}))
    piece = Reader(earlier, Job(9, log_probs=True)).piece(response)
    assert piece is not None
    assert (piece.text, piece.finish, piece.output_tokens, piece.cached_tokens) == ("éx", "", 7, 48)
    assert (piece.token_ids, piece.log_probs) == ([4, 5], [-0.5, -1.0])
    assert Reader(deployment(), Job(9)).piece(pb.ModelInferResponse()) is None


@pytest.mark.parametrize(
    ("said", "status", "param", "message"),
    [
        ("TF-RUN-056: 3 requests are waiting; retry later", 429, None, "3 requests are waiting; retry later"),
        ("TF-RUN-132: the request waited 2.0 s for its turn", 503, None, "the request waited 2.0 s for its turn"),
        ("TF-RUN-133: max_tokens is 9; at most 8", 400, "max_tokens", "max_tokens is 9; at most 8"),
        ("in ensemble 'x', TF-RUN-057: the engine is shutting down", 503, None, "the engine is shutting down"),
        ("TF-RUN-059: the engine step failed", 500, None, "the engine step failed"),
        ("TF-RUN-055: num_return_sequences is 9; num_return_sequences", 400, "n", "n is 9; n"),
        (
            "TF-RUN-054: token id 9 of embedding_bias is outside",
            400,
            "logit_bias",
            "token id 9 of logit_bias is outside",
        ),
        ("TF-RUN-079: stop_words is 'max_tokens stop_words'", 400, "stop", "stop is 'max_tokens stop_words'"),
        ("failed to connect", 502, None, "the server behind refused the request: failed to connect"),
    ],
)
def test_what_the_model_refuses_keeps_its_code(said: str, status: int, param: str | None, message: str) -> None:
    error = of_triton(said, deployment().names.clients)
    assert (error.status, error.param, error.message) == (status, param, message)
    assert error.headers.get("Retry-After") == ("1" if status in (429, 503) else None)
    body = error.to_json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] == (said.split(":")[0].split()[-1] if "TF-" in said else "TF-OAI-028")


def test_a_native_repository_is_read(tiny_engine: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").symlink_to(tiny_engine)
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny")
    found = read_deployment(tmp_path / "repository", bundle=tmp_path)
    assert (found.names.layout, found.model, found.name) == (NATIVE, "tiny", "tiny")
    assert (found.max_seq_len, found.max_input_len, found.block_size, found.decoupled) == (1024, 1023, 16, True)
    assert found.takes("tokens") and found.takes("guide") and found.gives_log_probs and found.batched
    assert found.tokenizer == tiny_engine
    assert read_deployment(tmp_path / "repository", name="other").name == "other"


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        read_deployment(tmp_path)
    assert caught.value.code == "TF-OAI-023"


def test_the_usual_length_of_an_answer_is_the_recipe_s() -> None:
    assert deployment().usual_length(4096) == 4096
    assert deployment(parameters={"max_output_tokens": "100"}).usual_length(4096) == 100
    both = {"max_output_tokens": "100", "default_max_tokens": "20"}
    assert deployment(parameters=both).usual_length(4096) == 20
    assert deployment(parameters=both).usual_length(9) == 9
