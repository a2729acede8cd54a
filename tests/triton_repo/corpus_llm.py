"""Valid repositories of language models: TensorRT-LLM by version, the LLM API, vLLM, and ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.triton_repo.corpus import (
    ASKING,
    COMPLETING,
    PY,
    TENSORRT_LLM,
    TRTLLM,
    TUTORIALS,
    add,
    parameters,
    published,
    step,
    steps,
    tensors,
)

# TensorRT-LLM ------------------------------------------------------------------------------------
SCALAR = "reshape: { shape: [ ] }"
OPTIONAL = "optional: true"


def engine_config(
    *,
    batch: int = 4,
    decoupled: bool = False,
    values: Mapping[str, str] | None = None,
    backend: str = "tensorrtllm",
    name: str = "tensorrt_llm",
    delay: int = 0,
    logits: str = "FP32",
    instances: str = "instance_group [\n  {\n    count: 1\n    kind : KIND_CPU\n  }\n]\n",
) -> str:
    """``tensorrt_llm/config.pbtxt`` with the tensors that these tests need."""
    settings = {
        "max_beam_width": "1",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "/engines/gpt/fp16/4-gpu",
        **(values or {}),
    }
    return (
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {batch}\n\nmodel_transaction_policy {{\n'
        f"  decoupled: {str(decoupled).lower()}\n}}\n\ndynamic_batching {{\n    preferred_batch_size: [ {batch} ]\n"
        f"    max_queue_delay_microseconds: {delay}\n    default_queue_policy: {{ max_queue_size: 0 }}\n}}\n\n"
        + tensors(
            "input",
            [
                ("input_ids", "INT32", (-1,), "allow_ragged_batch: true"),
                ("input_lengths", "INT32", (1,), SCALAR),
                ("request_output_len", "INT32", (1,), SCALAR),
                ("end_id", "INT32", (1,), SCALAR, OPTIONAL),
                ("pad_id", "INT32", (1,), SCALAR, OPTIONAL),
                ("runtime_top_k", "INT32", (1,), SCALAR, OPTIONAL),
                ("temperature", "FP32", (1,), SCALAR, OPTIONAL),
                ("streaming", "BOOL", (1,), SCALAR, OPTIONAL),
                ("lora_weights", "FP16", (-1, -1), OPTIONAL, "allow_ragged_batch: true"),
            ],
        )
        + tensors(
            "output",
            [
                ("output_ids", "INT32", (-1, -1)),
                ("sequence_length", "INT32", (-1,)),
                ("context_logits", logits, (-1, -1)),
            ],
        )
        + instances
        + parameters(settings)
    )


ASKED = {"1/model.py": ASKING}


def chain(
    root: Path,
    *,
    batch: int = 4,
    decoupled: bool = False,
    values: Mapping[str, str] | None = None,
    tokenizer: str = "/app/tensorrt_llm/examples/gpt/gpt2",
    count: int = 1,
    accumulate: str | None = None,
    backend: str = "tensorrtllm",
    delay: int = 0,
) -> None:
    """The five models of ``inflight_batcher_llm``, filled in by hand as NVIDIA's guide says."""
    cpu = f"instance_group [\n    {{\n        count: {count}\n        kind: KIND_CPU\n    }}\n]\n"
    add(
        root,
        "tensorrt_llm",
        engine_config(batch=batch, decoupled=decoupled, values=values, backend=backend, delay=delay),
        ASKED,
    )
    add(
        root,
        "preprocessing",
        f'name: "preprocessing"\nbackend: "python"\nmax_batch_size: {batch}\n'
        + tensors(
            "input",
            [
                ("QUERY", "STRING", (1,)),
                ("REQUEST_OUTPUT_LEN", "INT32", (1,)),
                ("END_ID", "INT32", (1,), OPTIONAL),
                ("PAD_ID", "INT32", (1,), OPTIONAL),
            ],
        )
        + tensors(
            "output",
            [
                ("INPUT_ID", "INT32", (-1,)),
                ("REQUEST_INPUT_LEN", "INT32", (1,)),
                ("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
                ("OUT_END_ID", "INT32", (1,)),
                ("OUT_PAD_ID", "INT32", (1,)),
            ],
        )
        + parameters({"tokenizer_dir": tokenizer, "add_special_tokens": "${add_special_tokens}"})
        + cpu,
        ASKED,
    )
    add(
        root,
        "postprocessing",
        f'name: "postprocessing"\nbackend: "python"\nmax_batch_size: {batch}\ndynamic_batching {{}}\n'
        + tensors("input", [("TOKENS_BATCH", "INT32", (-1, -1)), ("SEQUENCE_LENGTH", "INT32", (-1,))])
        + tensors("output", [("OUTPUT", "STRING", (-1,))])
        + parameters({"tokenizer_dir": tokenizer, "skip_special_tokens": "True"})
        + cpu,
        ASKED,
    )
    client = [
        ("text_input", "STRING", (1,)),
        ("max_tokens", "INT32", (1,)),
        ("end_id", "INT32", (1,), OPTIONAL),
        ("pad_id", "INT32", (1,), OPTIONAL),
        ("top_k", "INT32", (1,), OPTIONAL),
        ("temperature", "FP32", (1,), OPTIONAL),
        ("stream", "BOOL", (1,), OPTIONAL),
    ]
    answer = [("text_output", "STRING", (-1,)), ("context_logits", "FP32", (-1, -1))]
    add(
        root,
        "ensemble",
        f'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: {batch}\n'
        + tensors("input", client)
        + tensors("output", answer)
        + steps(
            step(
                "preprocessing",
                {"QUERY": "text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "END_ID": "end_id", "PAD_ID": "pad_id"},
                {
                    "INPUT_ID": "_INPUT_ID",
                    "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
                    "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
                    "OUT_END_ID": "_END_ID",
                    "OUT_PAD_ID": "_PAD_ID",
                },
            ),
            step(
                "tensorrt_llm",
                {
                    "input_ids": "_INPUT_ID",
                    "input_lengths": "_REQUEST_INPUT_LEN",
                    "request_output_len": "_REQUEST_OUTPUT_LEN",
                    "end_id": "_END_ID",
                    "pad_id": "_PAD_ID",
                    "runtime_top_k": "top_k",
                    "temperature": "temperature",
                    "streaming": "stream",
                },
                {"output_ids": "_TOKENS", "sequence_length": "_LENGTH", "context_logits": "context_logits"},
            ),
            step(
                "postprocessing", {"TOKENS_BATCH": "_TOKENS", "SEQUENCE_LENGTH": "_LENGTH"}, {"OUTPUT": "text_output"}
            ),
        ),
    )
    add(
        root,
        "tensorrt_llm_bls",
        f'name: "tensorrt_llm_bls"\nbackend: "python"\nmax_batch_size: {batch}\nmodel_transaction_policy {{\n'
        f"  decoupled: {str(decoupled).lower()}\n}}\n"
        + tensors("input", client)
        + tensors("output", answer)
        + parameters(
            {
                "accumulate_tokens": accumulate or "${accumulate_tokens}",
                "tensorrt_llm_model_name": "tensorrt_llm",
                "tensorrt_llm_draft_model_name": "${tensorrt_llm_draft_model_name}",
            }
        )
        + cpu,
        ASKED,
    )


def engine_folder(folder: Path, **build: object) -> Path:
    """A TensorRT-LLM engine's folder: ``config.json`` as trtllm-build writes it, empty rank files.

    Keys of ``plugin_config`` are given with the prefix ``plugin_``, those of the mapping as ``tp_size`` and so on.
    """
    plugins = {"use_paged_context_fmha": True, "tokens_per_block": 64, "lora_plugin": None, "paged_kv_cache": True}
    plugins |= {key.removeprefix("plugin_"): value for key, value in build.items() if key.startswith("plugin_")}
    mapping = {name: build.pop(name, 1) for name in ("tp_size", "pp_size")}
    logits = build.pop("logits_dtype", "float32")
    limits = {
        "max_batch_size": 4,
        "max_num_tokens": 8192,
        "max_seq_len": 2048,
        "max_input_len": 1024,
        "max_beam_width": 1,
    }
    own = {key: value for key, value in build.items() if not key.startswith("plugin_")}
    document = {
        "version": "1.2.1",
        "pretrained_config": {"dtype": "float16", "logits_dtype": logits, "mapping": mapping},
        "build_config": {**limits, "kv_cache_type": "PAGED", **own, "plugin_config": plugins},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    for rank in range(int(str(mapping["tp_size"])) * int(str(mapping["pp_size"]))):
        (folder / f"rank{rank}.engine").write_bytes(b"")
    return folder


@published(f"{TRTLLM}/v0.19.0/README.md")
def trtllm_quick_start(root: Path) -> None:
    """Optional parameters stay placeholders, as in the guide."""
    chain(
        root,
        values={
            "kv_cache_free_gpu_mem_fraction": "${kv_cache_free_gpu_mem_fraction}",
            "decoding_mode": "${decoding_mode}",
        },
    )


@published(f"{TRTLLM}/v0.19.0/docs/llama.md")
def trtllm_llama_streaming(root: Path) -> None:
    chain(
        root,
        batch=64,
        decoupled=True,
        delay=600,
        accumulate="True",
        values={
            "max_tokens_in_paged_kv_cache": "2560",
            "max_attention_window_size": "2560",
            "kv_cache_free_gpu_mem_fraction": "0.5",
            "exclude_input_in_output": "True",
            "enable_kv_cache_reuse": "False",
            "batch_scheduler_policy": "max_utilization",
        },
    )


@published(f"{TRTLLM}/v0.19.0/docs/llama_multi_instance.md")
def trtllm_multi_instance(root: Path) -> None:
    """Two engines of two GPUs each behind one repository: the orchestrator mode of the guide."""
    for name, devices in (("tensorrt_llm", "0,1"), ("tensorrt_llm_2", "2,3")):
        values = {"gpu_device_ids": devices, "kv_cache_free_gpu_mem_fraction": "0.9"}
        add(root, name, engine_config(name=name, values=values, batch=4), PY)


@published(f"{TRTLLM}/v0.19.0/docs/guided_decoding.md")
def trtllm_guided_decoding(root: Path) -> None:
    chain(
        root,
        backend="python",
        values={
            "guided_decoding_backend": "xgrammar",
            "tokenizer_dir": "/models/Llama-3.1-8B",
            "decoding_mode": "top_k_top_p",
        },
    )


@published(f"{TUTORIALS}/Feature_Guide/Speculative_Decoding/TRT-LLM/README.md")
def trtllm_speculation(root: Path) -> None:
    chain(
        root,
        values={
            "decoding_mode": "eagle",
            "eagle_choices": "{0}, {1}, {0, 0}, {0, 1}",
            "kv_cache_free_gpu_mem_fraction": "0.6",
        },
    )


@published(f"{TRTLLM}/v0.19.0/docs/lora.md")
def trtllm_with_engine(root: Path) -> None:
    """An engine that can be read from here, with LoRA, KV reuse and two ranks."""
    engine = engine_folder(root.parent / f"{root.name}-engine", tp_size=2, plugin_lora_plugin="float16")
    tokenizer = root.parent / f"{root.name}-tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}", encoding="utf-8")
    chain(
        root,
        tokenizer=str(tokenizer),
        values={
            "gpt_model_path": str(engine),
            "enable_kv_cache_reuse": "true",
            "gpu_device_ids": "0,1",
            "lora_cache_max_adapter_size": "64",
            "max_tokens_in_paged_kv_cache": "8192",
            "lora_cache_gpu_memory_fraction": "0.05",
        },
    )


LLMAPI_CONFIG = (
    'name: "tensorrt_llm"\nbackend: "python"\n\ninstance_group [\n  {\n    count: 1\n    kind : KIND_CPU\n  }\n]\n\n'
    + tensors(
        "input",
        [
            ("text_input", "STRING", (-1,)),
            ("streaming", "BOOL", (1,), OPTIONAL),
            ("sampling_param_max_tokens", "INT32", (1,), OPTIONAL),
        ],
    )
    + tensors("output", [("text_output", "STRING", (-1,)), ("finish_reason", "STRING", (-1,))])
)
LLMAPI_YAML = (
    'model: TinyLlama/TinyLlama-1.1B-Chat-v1.0\nbackend: "pytorch"\ntensor_parallel_size: 1\n'
    "pipeline_parallel_size: 1\ntriton_config:\n  max_batch_size: 0\n  decoupled: False\n"
)


@published(f"{TENSORRT_LLM}/all_models/llmapi/tensorrt_llm/config.pbtxt")
def llmapi(root: Path) -> None:
    add(root, "tensorrt_llm", LLMAPI_CONFIG, {"1/model.py": COMPLETING, "1/model.yaml": LLMAPI_YAML})


@published(f"{TRTLLM}/main/docs/llmapi.md")
def llmapi_multi_instance(root: Path) -> None:
    config = LLMAPI_CONFIG.replace("count: 1", "count: 2") + parameters({"gpu_device_ids": "0,1;2,3"})
    settings = (
        "model: meta-llama/Llama-3.1-8B\nbackend: pytorch\ntensor_parallel_size: 2\n"
        "kv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: true\nenable_chunked_prefill: true\n"
        "cuda_graph_config:\n  max_batch_size: 16\nmax_batch_size: 16\n"
        "triton_config:\n  max_batch_size: 0\n  decoupled: True\n"
    )
    add(root, "tensorrt_llm", config, {"1/model.py": COMPLETING, "1/model.yaml": settings})


def llmapi_with(root: Path, model: str, settings: str) -> None:
    document = f"model: {model}\nbackend: pytorch\n{settings}triton_config:\n  max_batch_size: 0\n  decoupled: False\n"
    add(root, "tensorrt_llm", LLMAPI_CONFIG, {"1/model.py": COMPLETING, "1/model.yaml": document})


_DOWNLOADS = "https://nvidia.github.io/TensorRT-LLM"


@published(f"{_DOWNLOADS}/_downloads/ddd5dad53c23c1710152570087d6d424/qwen3.8-low-latency.yaml")
def llmapi_low_latency(root: Path) -> None:
    settings = (
        "tensor_parallel_size: 16\nmoe_expert_parallel_size: 1\npipeline_parallel_size: 1\n"
        "enable_attention_dp: false\nenable_lm_head_tp_in_adp: false\ndisable_mm_encoder: true\nmax_batch_size: 256\n"
        "max_num_tokens: 8960\nmax_seq_len: 9472\nenable_chunked_prefill: false\nallreduce_strategy: AUTO\n"
        "cuda_graph_config:\n  enable_padding: true\n  max_batch_size: 256\n"
        "kv_cache_config:\n  enable_block_reuse: false\n  free_gpu_memory_fraction: 0.8\n  dtype: auto\n"
        "  mamba_ssm_cache_dtype: bfloat16\nmoe_config:\n  backend: TRTLLM\nstream_interval: 10\n"
        "print_iter_log: false\ntrust_remote_code: true\nnum_postprocess_workers: 4\n"
    )
    llmapi_with(root, "Qwen/Qwen3.8", settings)


@published(f"{_DOWNLOADS}/1.4.0rc1/_downloads/fa95ebae91950f50de3219fb8458acfd/qwen3.5-gb300-agentic-decode.yaml")
def llmapi_agentic(root: Path) -> None:
    settings = (
        "cache_transceiver_config:\n  backend: NIXL\n  kv_cache_bounce_size_mb: 2048\n"
        "cuda_graph_config:\n  enable_padding: true\n  batch_sizes:\n  - 1\n  - 2\n"
        "enable_iter_perf_stats: true\nenable_iter_req_stats: false\niter_perf_stats_interval: 40\n"
        "kv_cache_config:\n  avg_seq_len: 102150\n  dtype: fp8\n  enable_block_reuse: false\n"
        "  event_buffer_max_size: 0\n  free_gpu_memory_fraction: 0.85\n  host_cache_size: 137438953472\n"
        "  iteration_stats_interval: 40\n  tokens_per_block: 64\n  use_kv_cache_manager_v2: true\n"
        "max_seq_len: 262148\nmoe_config:\n  backend: TRTLLM\n  use_low_precision_moe_combine: true\n"
        "nvfp4_gemm_config:\n  allowed_backends:\n  - cutlass\npipeline_parallel_size: 1\nprint_iter_log: true\n"
        "return_perf_metrics: false\nscheduler_config:\n  capacity_scheduler_policy: GUARANTEED_NO_EVICT\n"
        "speculative_config:\n  decoding_type: MTP\n  max_draft_len: 6\nstream_interval: 20\n"
        "trust_remote_code: true\nmax_batch_size: 8\nmax_num_tokens: 56\nmoe_expert_parallel_size: 2\n"
        "tensor_parallel_size: 2\n"
    )
    llmapi_with(root, "Qwen/Qwen3.5", settings)


_CURATED = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/configs/curated"


@published(f"{_CURATED}/deepseek-v4-pro-throughput.yaml")
def llmapi_throughput(root: Path) -> None:
    settings = (
        "attention_dp_config:\n  enable_balance: true\ncuda_graph_config:\n  batch_sizes:\n  - 1\n  - 2\n  - 32\n"
        "  enable_padding: true\ndisable_overlap_scheduler: false\nenable_attention_dp: true\n"
        "enable_lm_head_tp_in_adp: true\nkv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n"
        "  free_gpu_memory_fraction: 0.6\n  tokens_per_block: 128\nmax_batch_size: 32\nmax_num_tokens: 8448\n"
        "max_seq_len: 9256\nmoe_config:\n  backend: TRTLLM\n  use_low_precision_moe_combine: true\n"
        "moe_expert_parallel_size: 8\nnum_postprocess_workers: 4\npipeline_parallel_size: 1\nprint_iter_log: true\n"
        "speculative_config:\n  decoding_type: MTP\n  max_draft_len: 1\nstream_interval: 100\n"
        "tensor_parallel_size: 8\n"
    )
    llmapi_with(root, "deepseek-ai/DeepSeek-V4-Pro", settings)


@published(f"{_CURATED}/nemotron-3-ultra-throughput.yaml")
def llmapi_mamba(root: Path) -> None:
    settings = (
        "max_batch_size: 256\nmax_num_tokens: 2048\ntensor_parallel_size: 4\nmoe_expert_parallel_size: 4\n"
        "trust_remote_code: true\nenable_attention_dp: true\ncuda_graph_config:\n  enable_padding: true\n"
        "  max_batch_size: 256\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: false\n"
        "  mamba_ssm_cache_dtype: float16\n  mamba_ssm_philox_rounds: 5\n  mamba_ssm_stochastic_rounding: true\n"
        "moe_config:\n  backend: CUTEDSL\nnum_postprocess_workers: 4\nstream_interval: 10\n"
    )
    llmapi_with(root, "nvidia/Nemotron-3-Ultra", settings)


@published(f"{_CURATED}/qwen3.8-flash-next-disagg-gen.yaml")
def llmapi_disaggregated(root: Path) -> None:
    settings = (
        "trust_remote_code: true\nmax_batch_size: 16\ncuda_graph_config:\n  enable_padding: true\n"
        "  max_batch_size: 16\nmoe_config:\n  backend: TRTLLM\nkv_cache_config:\n  free_gpu_memory_fraction: 0.5\n"
        "  mamba_ssm_cache_dtype: bfloat16\ncache_transceiver_config:\n  backend: NIXL\n"
        "  transceiver_runtime: PYTHON\n  max_tokens_in_buffer: 8192\n"
    )
    llmapi_with(root, "Qwen/Qwen3.8-Flash-Next", settings)


@published(f"{_CURATED}/minimax-m3-throughput.yaml")
def llmapi_sparse(root: Path) -> None:
    settings = (
        "max_batch_size: 256\nmax_num_tokens: 8192\nmax_seq_len: 2068\ntensor_parallel_size: 8\n"
        "moe_expert_parallel_size: 8\nenable_attention_dp: true\ntrust_remote_code: true\n"
        "kv_cache_config:\n  free_gpu_memory_fraction: 0.7\n  enable_block_reuse: false\n"
        "sparse_attention_config:\n  algorithm: minimax_m3\nstream_interval: 10\nnum_postprocess_workers: 4\n"
    )
    llmapi_with(root, "MiniMaxAI/MiniMax-M3", settings)


@published("https://github.com/NVIDIA/TensorRT-LLM/issues/10396")
def llmapi_eagle(root: Path) -> None:
    settings = (
        "enable_attention_dp: false\nenable_chunked_prefill: false\nspeculative_config:\n  max_draft_len: 4\n"
        "  decoding_type: Eagle\n  speculative_model_dir: draft_path\n  eagle3_one_model: false\n"
        "  use_dynamic_tree: false\n"
    )
    llmapi_with(root, "Qwen/Qwen2.5-3B-Instruct", settings)


# vLLM --------------------------------------------------------------------------------------------
VLLM = 'backend: "vllm"\n\ninstance_group [\n  {\n    count: 1\n    kind: KIND_MODEL\n  }\n]\n'


@published(
    "https://github.com/triton-inference-server/vllm_backend/blob/main/samples/model_repository/vllm_model/config.pbtxt"
)
def vllm(root: Path) -> None:
    settings = {"model": "facebook/opt-125m", "gpu_memory_utilization": 0.1, "enforce_eager": True}
    add(root, "vllm_model", VLLM, {"1/model.json": json.dumps(settings, indent=4)})


@published(f"{TUTORIALS}/Popular_Models_Guide/Llama2/llama2vllm/config.pbtxt")
def vllm_llama(root: Path) -> None:
    settings = {"model": "meta-llama/Llama-2-7b-hf", "gpu_memory_utilization": 0.9, "tensor_parallel_size": 2}
    add(root, "llama2vllm", VLLM, {"1/model.json": json.dumps(settings, indent=4)})


# our own -----------------------------------------------------------------------------------------
@published("triton_repo/layouts/native.py of this repository")
def native(root: Path) -> None:
    from triton_repo.layouts.native import emit

    engine = root.parent / "engine"
    engine.mkdir()
    limits = {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 512, "max_input_len": 511}
    (engine / "engine.json").write_text(json.dumps({"version": 1, "limits": limits}), encoding="utf-8")
    emit(engine, root, name="demo", engine_reference="../../engine")


def _recipe(target: str, layout: str, *, decoupled: bool) -> Any:
    from trtforge.recipe.schema import Recipe

    document = {
        "name": "x",
        "model": {"source": "/m"},
        "build": {"target": target},
        "triton": {"layout": layout, "decoupled": decoupled},
    }
    return Recipe.model_validate(document)


@published("triton_repo/layouts/inflight_batcher_llm.py of this repository")
def our_inflight_batcher(root: Path) -> None:
    from tests.triton_repo.served import ENGINE
    from triton_repo.layouts.inflight_batcher_llm import emit

    emit(_recipe("trtllm-engine", "inflight_batcher_llm", decoupled=False), ENGINE, root)


@published("triton_repo/layouts/inflight_batcher_llm.py of this repository")
def our_inflight_batcher_streaming(root: Path) -> None:
    from tests.triton_repo.served import ENGINE
    from triton_repo.layouts.inflight_batcher_llm import emit

    emit(_recipe("trtllm-engine", "inflight_batcher_llm", decoupled=True), ENGINE, root)


@published("triton_repo/layouts/llmapi.py of this repository")
def our_llmapi(root: Path) -> None:
    from triton_repo.layouts.llmapi import emit

    emit(_recipe("trtllm-llmapi", "llmapi", decoupled=True), root)
