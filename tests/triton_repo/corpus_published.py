"""Valid repositories that raised false alarms once, or that stand for backends and versions the others leave out.

Each is rebuilt from the names, types and numbers of the configuration that its source publishes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.triton_repo.corpus import (
    CPU,
    PY,
    PYTHON,
    TRTLLM,
    TUTORIALS,
    add,
    parameters,
    published,
    step,
    steps,
    tensors,
)
from tests.triton_repo.corpus_llm import ASKED, OPTIONAL, chain, engine_config
from tests.triton_repo.corpus_triton import control

SERVER_QA = "https://github.com/triton-inference-server/server/tree/main/qa"
BACKENDS = "https://github.com/triton-inference-server"


def edit(root: Path, model: str, *, drop: tuple[str, ...] = (), **more: str) -> None:
    """Take parameters out of a configuration, or add some."""
    path = root / model / "config.pbtxt"
    text = path.read_text(encoding="utf-8")
    for name in drop:
        text = re.sub(rf'parameters: {{\n  key: "{name}"\n.*?\n}}\n', "", text, count=1, flags=re.DOTALL)
    path.write_text(text + parameters(more), encoding="utf-8")


# TensorRT-LLM, older versions and other models ------------------------------------------------------
@published(f"{TRTLLM}/v0.8.0/docs/llama.md")
def trtllm_0_8(root: Path) -> None:
    """Parameters that are gone since are read by the version that the repository is of."""
    values = {"gpt_model_type": "inflight_batching", "max_tokens_in_paged_kv_cache": "2560"}
    chain(root, batch=64, values={**values, "kv_cache_free_gpu_mem_fraction": "0.5"})
    edit(root, "tensorrt_llm_bls", drop=("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"))
    for model in ("preprocessing", "postprocessing"):
        edit(root, model, tokenizer_type="llama")


@published(f"{TRTLLM}/v0.9.0/docs/llama.md")
def trtllm_0_9_workers(root: Path) -> None:
    worker = "/app/all_models/inflight_batcher_llm/triton_worker"
    add(root, "tensorrt_llm", engine_config(values={"gpu_device_ids": "0,1", "worker_path": worker}), ASKED)


@published(f"{TRTLLM}/v0.17.0/docs/multimodal.md")
def trtllm_0_17_multimodal(root: Path) -> None:
    chain(root, batch=8, values={"enable_kv_cache_reuse": "False"})
    edit(root, "preprocessing", visual_model_path="/engines/vision", max_num_images="1")


@published(f"{TRTLLM}/v0.19.0/docs/multimodal.md")
def trtllm_mllama(root: Path) -> None:
    """A decoder with cross attention: its features come from another model, not from an encoder's engine."""
    chain(root, batch=8, values={"cross_kv_cache_fraction": "0.5", "enable_kv_cache_reuse": "False"})
    edit(root, "tensorrt_llm_bls", multimodal_encoders_name="multimodal_encoders")
    edit(root, "preprocessing", multimodal_model_path="/engines/vision")
    features = [("ENCODER_INPUT_FEATURES", "BF16", (-1, -1)), ("ENCODER_OUTPUT_LENGTHS", "INT32", (1,))]
    add(
        root,
        "multimodal_encoders",
        'name: "multimodal_encoders"\nbackend: "python"\nmax_batch_size: 8\n'
        + tensors("input", [("pixel_values", "FP16", (-1, -1, -1, -1), OPTIONAL)])
        + tensors("output", features)
        + parameters({"multimodal_model_path": "/engines/vision", "hf_model_path": "/models/mllama"})
        + CPU,
        PY,
    )


@published(f"{TRTLLM}/v0.17.0/docs/whisper.md")
def trtllm_whisper(root: Path) -> None:
    """A model with an ``engine_dir`` that is none of ours."""
    values = {"encoder_model_path": "/engines/whisper/encoder", "cross_kv_cache_fraction": "0.5"}
    add(root, "tensorrt_llm", engine_config(batch=8, values=values), ASKED)
    add(
        root,
        "whisper_bls",
        'name: "whisper_bls"\nbackend: "python"\nmax_batch_size: 8\nmodel_transaction_policy { decoupled: false }\n'
        + tensors("input", [("TEXT_PREFIX", "STRING", (1,)), ("WAV", "FP32", (-1,)), ("WAV_LENS", "INT32", (1,))])
        + tensors("output", [("TRANSCRIPTS", "STRING", (1,))])
        + 'parameters [\n  { key: "n_mels", value: {string_value:"128"} },\n'
        + '  { key: "engine_dir" value: {string_value: "whisper_large_v3_max_batch_64/encoder"} },\n'
        + '  { key: "zero_pad" value: {string_value: "false"} }\n]\ndynamic_batching {\n  }\n'
        + "instance_group [ { count: 8 kind: KIND_CPU } ]\n",
        PY,
    )


@published("https://docs.vllm.ai/en/v0.11.0/features/spec_decode.html")
def vllm_speculation(root: Path) -> None:
    """The draft model as vLLM takes it since 0.8; Triton's tutorial of 25.02 has the names before."""
    settings = {
        "model": "facebook/opt-6.7b",
        "tensor_parallel_size": 1,
        "speculative_config": {"model": "facebook/opt-125m", "num_speculative_tokens": 5},
    }
    config = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
    add(root, "opt_model", config, {"1/model.json": json.dumps(settings, indent=4)})


@published("https://github.com/triton-inference-server/vllm_backend/blob/main/docs/llama_multi_lora_tutorial.md")
def vllm_adapters(root: Path) -> None:
    """The flags are texts in the tutorial, which Python takes for true."""
    settings = {
        "model": "/vllm_workspace/weights/backbone/llama-7b-hf",
        "gpu_memory_utilization": 0.8,
        "tensor_parallel_size": 2,
        "block_size": 16,
        "enforce_eager": "true",
        "enable_lora": "true",
        "max_lora_rank": 16,
    }
    config = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
    adapters = json.dumps({"alpaca": "/vllm_workspace/weights/loras/alpaca-lora-7b"})
    files = {"1/model.json": json.dumps(settings, indent=4), "1/multi_lora.json": adapters}
    add(root, "vllm_llama_multi_lora", config, files)


# other backends -------------------------------------------------------------------------------------
@published(f"{BACKENDS}/fil_backend/tree/main/qa/benchmark_repo")
def forest(root: Path) -> None:
    values = {"model_type": "xgboost_json", "predict_proba": "true", "is_classifier": "true", "threshold": "0.5"}
    add(
        root,
        "large_model-cpu",
        'backend: "fil"\nmax_batch_size: 6329\n'
        + tensors("input", [("input__0", "FP32", (393,))])
        + tensors("output", [("output__0", "FP32", (2,))])
        + "instance_group [{ kind: KIND_CPU }]\n"
        + parameters(values)
        + "dynamic_batching { }\n",
        {"1/xgboost.json": "{}"},
    )


@published(f"{BACKENDS}/stateful_backend/tree/main/models")
def stateful(root: Path) -> None:
    controls = [
        control("ResetSequence", "START"),
        control("EndSequence", "END"),
        control("CORRID", "CORRID", "data_type: TYPE_UINT64"),
    ]
    add(
        root,
        "accumulate_fp32",
        'name: "accumulate_fp32"\nbackend: "stateful"\nmax_batch_size: 16\nsequence_batching {\n'
        "  max_sequence_idle_microseconds: 100000000\n  oldest {\n    max_candidate_sequences: 1280\n"
        "    #preferred_batch_size: [ 64 ]\n    max_queue_delay_microseconds: 2000\n  }\n"
        "  control_input [\n"
        + ",\n".join(controls)
        + "\n  ]\n}\n"
        + tensors("input", [("Input", "FP32", (4, -1, 5))])
        + tensors("output", [("Output", "FP32", (4, -1, 5))])
        + parameters({"state_pairs": "<<<Accumulate_In, Accumulate_Out>>>", "initial_buffer_size": "512"}),
        {"1/accumulate_fp32.onnx": ""},
    )


@published(f"{BACKENDS}/dali_backend/tree/main/docs/examples/multi_input")
def dali_multi_input(root: Path) -> None:
    add(
        root,
        "dali_multi_input",
        'name: "dali_multi_input"\nbackend: "dali"\nmax_batch_size: 256\ndefault_model_filename: "model.dali"\n'
        + tensors("input", [("DALI_X_INPUT", "UINT8", (-1,)), ("DALI_SCALAR", "INT32", (1,))])
        + tensors("output", [("DALI_unchanged", "INT32", (-1,)), ("DALI_changed", "INT32", (-1,))]),
        {"1/model.dali": ""},
    )


@published(f"{BACKENDS}/backend/tree/main/examples/model_repos/bls_models")
def bls_in_a_library(root: Path) -> None:
    """Inputs as several statements; a backend that only its own container has."""
    pairs = [(f"{side.upper()}{i}", "FP32", (16,)) for side in ("input", "output") for i in (0, 1)]
    io = "".join(tensors(name.lower().rstrip("01"), [(name, kind, dims)]) for name, kind, dims in pairs)
    add(root, "bls_fp32", f'name: "bls_fp32"\nbackend: "bls"\nmax_batch_size: 0\n{io}{CPU}')
    add(root, "addsub_python", f'name: "addsub_python"\nbackend: "python"\nmax_batch_size: 0\n{io}', PY)


@published(f"{BACKENDS}/openvino_backend/blob/main/tests/configs/dynamic.pbtxt")
def openvino_dynamic(root: Path) -> None:
    add(
        root,
        "dynamic",
        tensors("input", [("data", "FP32", (-1, 3, -1, -1))])
        + tensors("output", [("detection_out", "FP32", (1, 1, -1, 7))])
        + parameters({"RESHAPE_IO_LAYERS": "yes"}),
        {"1/model.xml": "", "1/model.bin": ""},
    )


@published(f"{TUTORIALS}/Popular_Models_Guide/StableDiffusion/README.md")
def diffusion(root: Path) -> None:
    """A backend written in Python; empty parameters."""
    add(
        root,
        "stable_diffusion_1_5",
        'backend: "diffusion"\nmax_batch_size: 1\ndynamic_batching { max_queue_delay_microseconds: 100000 }\n'
        + tensors("input", [("prompt", "STRING", (1,)), ("negative_prompt", "STRING", (1,), OPTIONAL)])
        + tensors("output", [("generated_image", "UINT8", (-1, -1, -1))])
        + "instance_group [ { count: 1 kind: KIND_GPU gpus: [0] } ]\n"
        + parameters({"image_height": "512", "scheduler": "", "guidance_scale": "7.5", "seed": ""}),
    )


# schedulers and ensembles ---------------------------------------------------------------------------
@published(f"{TUTORIALS}/Conceptual_Guide/Part_7-iterative_scheduling/README.md")
def iterative_gpt2(root: Path) -> None:
    """Controls before the strategy, an empty strategy, tensors from the code."""
    controls = [
        control("correlation_id", "CORRID", "data_type: TYPE_UINT64"),
        control("start", "START", "fp32_false_true: [ 0, 1 ]"),
        control("end", "END", "fp32_false_true: [ 0, 1 ]"),
    ]
    completing = PYTHON.replace(
        "    def execute", "    @staticmethod\n    def auto_complete_config(c):\n        return c\n\n    def execute"
    )
    add(
        root,
        "iterative-gpt2",
        'backend: "python"\nsequence_batching {\n    iterative_sequence: true\n    control_input: [\n'
        + ",\n".join(controls)
        + "\n    ]\n    oldest {}\n    max_sequence_idle_microseconds: 400000000\n}\n"
        "instance_group [ { count: 1 kind: KIND_GPU } ]\n",
        {"1/model.py": completing},
    )


def identity(root: Path, name: str, batch: int, dims: tuple[int, ...], outputs: int = 1) -> None:
    io = [[(f"{side}{i}", "FP32", dims) for i in range(outputs)] for side in ("INPUT", "OUTPUT")]
    config = f'name: "{name}"\nmax_batch_size: {batch}\nbackend: "identity"\n'
    add(root, name, config + tensors("input", io[0]) + tensors("output", io[1]) + CPU)


@published(f"{SERVER_QA}/L0_model_config/autofill_noplatform_success/ensemble/inconsistent_shape")
def ensemble_of_batching_and_not(root: Path) -> None:
    """A step that batches hands on to one whose first axis is the batch."""
    identity(root, "fp32_dim1_batch4", 4, (16,))
    identity(root, "fp32_dim2_nobatch", 0, (-1, 16))
    add(
        root,
        "inconsistent_shape",
        'name: "inconsistent_shape"\nmax_batch_size: 2\nplatform: "ensemble"\n'
        + steps(
            step("fp32_dim1_batch4", {"INPUT0": "data"}, {"OUTPUT0": "temp_tensor"}),
            step("fp32_dim2_nobatch", {"INPUT0": "temp_tensor"}, {"OUTPUT0": "prob"}),
        )
        + tensors("input", [("data", "FP32", (16,))])
        + tensors("output", [("prob", "FP32", (16,))]),
    )


@published(f"{SERVER_QA}/L0_model_config/autofill_noplatform_success/ensemble/unmapped_output")
def ensemble_with_one_tensor_for_all(root: Path) -> None:
    """One tensor feeds three inputs; two outputs go nowhere."""
    identity(root, "fp32_dim1_batch4_output3", 4, (16,), outputs=3)
    add(
        root,
        "unmapped_output",
        'name: "unmapped_output"\nmax_batch_size: 2\nplatform: "ensemble"\n'
        + steps(step("fp32_dim1_batch4_output3", {f"INPUT{i}": "data" for i in range(3)}, {"OUTPUT0": "prob"}))
        + tensors("input", [("data", "FP32", (16,))])
        + tensors("output", [("prob", "FP32", (16,))]),
    )


@published(f"{SERVER_QA}/L0_simple_ensemble/backpressure_test_models")
def ensemble_with_a_decoupled_step(root: Path) -> None:
    """The first step is decoupled, the ensemble says nothing of it, and the next one is not."""
    producer = tensors("input", [("IN", "INT32", (1,))]) + tensors("output", [("OUT", "FP32", (1,))])
    add(
        root,
        "decoupled_producer",
        f'backend: "python"\nmax_batch_size: 1\n{producer}model_transaction_policy {{ decoupled: true }}\n',
        PY,
    )
    consumer = tensors("input", [("INPUT0", "FP32", (1,))]) + tensors("output", [("OUTPUT0", "FP32", (1,))])
    add(root, "slow_consumer", f'backend: "python"\nmax_batch_size: 1\n{consumer}{CPU}', PY)
    add(
        root,
        "backpressure",
        'platform: "ensemble"\nmax_batch_size: 0\n'
        + producer
        + steps(
            step("decoupled_producer", {"IN": "IN"}, {"OUT": "intermediate"}),
            step("slow_consumer", {"INPUT0": "intermediate"}, {"OUTPUT0": "OUT"}),
        ),
    )


@published(f"{SERVER_QA}/L0_passive_instance/models")
def passive_instances(root: Path) -> None:
    rows = [[(f"{side}{i}", "INT32", (16,)) for i in (0, 1)] for side in ("INPUT", "OUTPUT")]
    add(
        root,
        "distributed",
        'backend: "distributed_addsub"\nmax_batch_size: 1\n'
        + tensors("input", rows[0])
        + tensors("output", rows[1])
        + "instance_group [\n  { kind: KIND_CPU },\n  { kind: KIND_GPU passive: true }\n]\n",
    )
