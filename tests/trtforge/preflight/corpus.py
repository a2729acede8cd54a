"""Recipes of documented, working public settings, each with its source; mutations of them are the planted faults.

Settings that a source leaves at TensorRT-LLM's defaults are written as those defaults (max_num_tokens 8192).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.preflight import BIG
from tests.support.public_models import public
from tests.trtforge.preflight.folders import write_draft, zeros
from tests.trtforge.preflight.settings import (
    API,
    ENGINE,
    RTX,
    build,
    merged,
    parameters,
    quant,
    speculation,
    triton,
    trtllm,
)
from trtforge.models.record import Model

_LLAMA = "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/models/core/llama/README.md"
_MIXTRAL = "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/models/core/mixtral/README.md"
_QWEN = "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/models/core/qwen/README.md"
_QUANTIZE = "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/quantization/README.md"
_BACKEND = "https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/"
_SPECULATION = "https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html"
_PERF = "https://nvidia.github.io/TensorRT-LLM/0.20.0/performance/perf-overview.html"
_GUIDE = "https://nvidia.github.io/TensorRT-LLM/deployment-guide/deployment-guide-for-llama3.3-70b-on-trtllm.html"
_PYTORCH = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/pytorch/README.md"
_REUSE = "https://nvidia.github.io/TensorRT-LLM/advanced/kv-cache-reuse.html"
_RTX = "https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/getting-started/support-matrix.html"
_PTQ = "https://github.com/NVIDIA/Model-Optimizer/blob/main/examples/llm_ptq/README.md"

LIMITS = build(limits={"max_batch_size": 32, "max_num_tokens": 8192, "max_seq_len": 2048})
#: the tree of 63 nodes that NVIDIA's Medusa and EAGLE examples use (mc_sim_7b_63)
MC_SIM = [
    [0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2], [3], [0, 3], [4], [0, 4], [2, 0], [0, 5], [0, 0, 1], [5],
    [0, 6], [6], [0, 7], [0, 1, 0], [1, 1], [7], [0, 8], [0, 0, 2], [3, 0], [0, 9], [8], [9], [1, 0, 0], [0, 2, 0],
    [1, 2], [0, 0, 3], [4, 0], [2, 1], [0, 0, 4], [0, 0, 5], [0, 0, 0, 0], [0, 1, 1], [0, 0, 6], [0, 3, 0], [5, 0],
    [1, 3], [0, 0, 7], [0, 0, 8], [0, 0, 9], [6, 0], [0, 4, 0], [1, 4], [7, 0], [0, 1, 2], [2, 0, 0], [3, 1], [2, 2],
    [8, 0], [0, 5, 0], [1, 5], [1, 0, 1], [0, 2, 1], [9, 0], [0, 6, 0], [0, 0, 0, 1], [1, 6], [0, 7, 0],
]  # fmt: skip


@dataclass(frozen=True)
class Valid:
    """A recipe that works as it stands: its source, the model's record, the settings."""

    source: str
    model: Model
    settings: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """The draft that the settings name, of the method's kind, with the target's vocabulary and width."""
        if "draft" in self.settings.get("speculation", {}):
            heads = {"medusa_num_heads": 4, "medusa_num_layers": 1}
            tensors = {
                "medusa": {f"{head}.0.linear.weight": zeros(2, 2) for head in range(4)},
                "eagle": {"fc.weight": zeros(2, 4)},
                "eagle3": {"fc.weight": zeros(2, 6), "d2t": zeros(2), "midlayer.mlp.up_proj.weight": zeros(2, 2)},
            }.get(self.settings["speculation"]["method"], {"model.norm.weight": zeros(2)})
            config = {"vocab_size": self.model.vocab, "hidden_size": self.model.hidden, **heads}
            write_draft(folder / "draft", config=config, tensors=tensors)

    def facts_with(self, **more: Any) -> dict[str, Any]:
        return {"model": self.model, "machine": BIG, **self.facts, **more}


LLAMA_2 = public("meta-llama/Llama-2-7b-hf")
LLAMA_3 = public("meta-llama/Meta-Llama-3-8B")
LLAMA_31 = public("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = public("meta-llama/Llama-3.1-70B-Instruct")
VICUNA = public("lmsys/vicuna-7b-v1.3")
TINY = public("TinyLlama/TinyLlama-1.1B-Chat-v1.0")
QWEN_72B = public("Qwen/Qwen2-72B-Instruct")
QWEN_7B = public("Qwen/Qwen2.5-7B-Instruct")
YARN = public("Qwen/Qwen2.5-7B-Instruct with YaRN")
FP8_70B = public("meta-llama/Llama-3.1-70B-Instruct", prequantized="fp8", prequantized_kv_cache="fp8")
FP8_8B = public("meta-llama/Llama-3.1-8B-Instruct", prequantized="fp8", prequantized_kv_cache="fp8")
FP4_70B = public("meta-llama/Llama-3.1-70B-Instruct", prequantized="nvfp4", prequantized_kv_cache="fp8")
SMOL = public("HuggingFaceTB/SmolLM2-135M-Instruct")
MIXTRAL = public("mistralai/Mixtral-8x7B-Instruct-v0.1")
MISTRAL = public("mistralai/Mistral-7B-Instruct-v0.3")
B200 = build(architectures=["sm_100"])
EAGLE_3 = speculation(method="eagle3", draft="draft", max_draft_len=3)
BFLOAT = {"model": {"dtype": "bfloat16"}}

VALID: dict[str, Valid] = {
    "llama-7b-fp16": Valid(_LLAMA, LLAMA_2, merged(ENGINE, LIMITS)),
    "llama-7b-bf16": Valid(_LLAMA, LLAMA_2, merged(ENGINE, LIMITS, BFLOAT)),
    "llama-7b-tp2": Valid(_LLAMA, LLAMA_2, merged(ENGINE, LIMITS, build(parallel={"tp": 2}))),
    "llama-7b-tp2-pp2": Valid(_LLAMA, LLAMA_2, merged(ENGINE, LIMITS, build(parallel={"tp": 2, "pp": 2}))),
    "llama-3-8b": Valid(_LLAMA, LLAMA_3, merged(ENGINE, LIMITS)),
    "llama-70b-tp8": Valid(_LLAMA, LLAMA_70B, merged(ENGINE, LIMITS, build(parallel={"tp": 8}))),
    "llama-70b-tp4-pp2": Valid(_LLAMA, LLAMA_70B, merged(ENGINE, LIMITS, build(parallel={"tp": 4, "pp": 2}))),
    "llama-70b-fp8-tp2": Valid(
        _LLAMA,
        LLAMA_70B,
        merged(ENGINE, LIMITS, quant(format="fp8", kv_cache="fp8"), build(parallel={"tp": 2}), trtllm(workers=2)),
    ),
    "llama-7b-awq-128": Valid(_LLAMA, LLAMA_2, merged(ENGINE, LIMITS, quant(format="int4_awq", group_size=128))),
    "llama-70b-awq-64-tp4": Valid(
        _QUANTIZE,
        LLAMA_70B,
        merged(ENGINE, LIMITS, quant(format="int4_awq", group_size=64), build(parallel={"tp": 4})),
    ),
    "mixtral-pp2": Valid(_MIXTRAL, MIXTRAL, merged(ENGINE, LIMITS, build(parallel={"pp": 2}))),
    "mixtral-tp2": Valid(_MIXTRAL, MIXTRAL, merged(ENGINE, LIMITS, build(parallel={"tp": 2}))),
    "mixtral-tp4-ep2": Valid(_MIXTRAL, MIXTRAL, merged(ENGINE, LIMITS, build(parallel={"tp": 4, "ep": 2}))),
    "mixtral-fp8-tp2": Valid(
        _MIXTRAL,
        MIXTRAL,
        merged(
            ENGINE,
            LIMITS,
            quant(format="fp8", kv_cache="fp8"),
            build(parallel={"tp": 2}),
            trtllm(workers=2, fp8_context_attention=True),
        ),
    ),
    "mistral-7b": Valid(_LLAMA, MISTRAL, merged(ENGINE, LIMITS)),
    "llama-3-8b-chunked": Valid(
        _LLAMA + "#long-context-evaluation",
        LLAMA_31,
        merged(
            ENGINE,
            build(limits={"max_batch_size": 1, "max_num_tokens": 4096, "max_seq_len": 16_394, "max_input_len": 16_384}),
            {"bench": {"concurrency": [1]}},
            trtllm(gather_context_logits=True),
        ),
    ),
    "qwen2-72b-tp8": Valid(_QWEN, QWEN_72B, merged(ENGINE, LIMITS, build(parallel={"tp": 8}))),
    "qwen2.5-7b-fp8": Valid(
        _QWEN,
        QWEN_7B,
        merged(ENGINE, LIMITS, quant(format="fp8", kv_cache="fp8"), trtllm(fp8_context_attention=True)),
    ),
    "triton-llama-7b": Valid(
        _BACKEND + "llama.md",
        LLAMA_2,
        merged(
            ENGINE,
            build(
                limits={"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 4096},
                kv_cache={"free_fraction": 0.5},
            ),
            triton(decoupled=False, accumulate_tokens=False),
            parameters(
                enable_kv_cache_reuse="false", gpt_model_type="inflight_fused_batching", normalize_log_probs="true"
            ),
        ),
    ),
    "triton-llama-7b-streaming": Valid(
        _BACKEND + "llama.md",
        LLAMA_2,
        merged(
            ENGINE,
            build(
                limits={"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 4096},
                kv_cache={"free_fraction": 0.5},
            ),
            triton(decoupled=True, accumulate_tokens=True),
        ),
    ),
    "triton-lora": Valid(
        _BACKEND + "lora.md",
        LLAMA_2,
        merged(
            ENGINE,
            build(limits={"max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 562}),
            {"bench": {"concurrency": [1, 4, 8], "prompts": "builtin:short"}},
            trtllm(
                lora={
                    "adapters": {"1": "hf:qychen/luotuo-lora-7b-0.1", "2": "hf:kunishou/Japanese-Alpaca-LoRA-7b-v0"},
                    "max_rank": 8,
                    "target_modules": ["attn_q", "attn_k", "attn_v"],
                }
            ),
        ),
    ),
    "triton-guided": Valid(
        _BACKEND + "guided_decoding.md",
        TINY,
        merged(
            ENGINE,
            build(
                limits={"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 2048},
                kv_cache={"free_fraction": 0.5},
            ),
            trtllm(guided_decoding="xgrammar"),
        ),
    ),
    "lookahead-vicuna": Valid(
        "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/lookahead/README.md",
        VICUNA,
        merged(
            ENGINE,
            build(limits={"max_batch_size": 32, "max_num_tokens": 8192, "max_seq_len": 2048, "max_input_len": 1024}),
            speculation(method="lookahead", max_draft_len=83, lookahead={"window": 7, "ngram": 7, "verification": 7}),
        ),
    ),
    "medusa-vicuna": Valid(
        "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/medusa/README.md",
        VICUNA,
        merged(
            ENGINE,
            build(limits={"max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 2048}),
            {"bench": {"concurrency": [1, 4, 8]}},
            speculation(
                method="medusa",
                draft="draft",
                heads=4,
                max_draft_len=63,
                choices=MC_SIM,
            ),
        ),
    ),
    "kv-reuse-with-offload": Valid(
        _REUSE,
        LLAMA_3,
        merged(ENGINE, LIMITS, trtllm(kv_reuse=True, host_kv_memory="45GB"), build(kv_cache={"block_size": 32})),
    ),
    "serve-llama-3.3-70b-fp8": Valid(
        _GUIDE,
        FP8_70B,
        merged(
            API,
            build(
                limits={"max_batch_size": 128, "max_num_tokens": 2048, "max_seq_len": 2048},
                kv_cache={"free_fraction": 0.9},
            ),
        ),
    ),
    "serve-llama-3.3-70b-fp4-b200": Valid(_PERF, FP4_70B, merged(API, B200, LIMITS)),
    "serve-llama-3.3-70b-fp4-b200-tp4": Valid(_PERF, FP4_70B, merged(API, B200, LIMITS, build(parallel={"tp": 4}))),
    "serve-llama-3.1-8b-fp8-tp2": Valid(_PYTORCH, FP8_8B, merged(API, LIMITS, build(parallel={"tp": 2}))),
    "serve-eagle3": Valid(_SPECULATION, LLAMA_31, merged(API, LIMITS, EAGLE_3)),
    "serve-eagle3-dynamic-tree": Valid(
        _SPECULATION,
        LLAMA_31,
        merged(
            API,
            LIMITS,
            speculation(method="eagle3", draft="draft", dynamic_tree={"depth": 6, "top_k": 10, "total": 60}),
        ),
    ),
    "serve-eagle3-by-load": Valid(
        _SPECULATION,
        LLAMA_31,
        merged(API, LIMITS, EAGLE_3, speculation(max_draft_len=4, draft_len_schedule={4: 4, 8: 2, 32: 1})),
    ),
    "serve-eagle3-automaton": Valid(
        _SPECULATION, LLAMA_31, merged(API, LIMITS, EAGLE_3, speculation(ngram_on_top=True))
    ),
    "serve-ngram": Valid(_SPECULATION, LLAMA_31, merged(API, LIMITS, speculation(method="ngram", max_draft_len=3))),
    "serve-draft-target": Valid(
        _SPECULATION,
        LLAMA_70B,
        merged(
            API,
            LIMITS,
            build(parallel={"tp": 4}),
            speculation(method="draft_target", draft="draft", max_draft_len=3),
        ),
    ),
    "eagle-vicuna": Valid(
        "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/eagle/README.md",
        VICUNA,
        merged(
            ENGINE,
            build(limits={"max_batch_size": 4, "max_num_tokens": 8192, "max_seq_len": 2048}),
            {"bench": {"concurrency": [1, 4]}},
            speculation(method="eagle", draft="draft", heads=4, max_draft_len=63, choices=MC_SIM),
        ),
    ),
    "serve-qwen2.5-yarn": Valid(
        "https://huggingface.co/Qwen/Qwen2.5-7B-Instruct#processing-long-texts",
        YARN,
        merged(API, build(limits={"max_batch_size": 16, "max_num_tokens": 8192, "max_seq_len": 131_072})),
    ),
    "ptq-llama-3.1-8b-nvfp4": Valid(_PTQ, LLAMA_31, merged(API, B200, LIMITS, quant(format="nvfp4", kv_cache="fp8"))),
}

#: what this version does not serve or convert, so that it is no recipe to run: faults are planted here too
UNSERVED: dict[str, Valid] = {
    "rtx-fp8": Valid(_RTX, SMOL, merged(RTX, quant(format="fp8"), build(limits={"max_seq_len": 2048}))),
}
