"""Reference figures of aiconfigurator for the planner's tests: weights and KV bytes of models that both know.

aiconfigurator is large and pins other versions than ours, so it lives in an environment of its own:

    python -m venv /tmp/aic && /tmp/aic/bin/pip install aiconfigurator==0.12.0
    /tmp/aic/bin/python benchmarks/aiconfigurator_compare.py tests/builder/planner/aiconfigurator_memory.json

This file imports nothing of trtforge. It writes the figures, the command's arguments, the versions, and the
configuration (config.json as aiconfigurator ships it, sizes only) that the planner reads in the comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

#: model, system, tp, pp, moe_tp, moe_ep, gemm, moe, kv; pp is 1 where KV bytes are compared, because aiconfigurator
#: counts the KV cache of all stages on every rank
CASES: tuple[tuple[Any, ...], ...] = (
    ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 1, 1, None, None, "bfloat16", None, "bfloat16"),
    ("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 1, 1, None, None, "fp8", None, "fp8"),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, 1, None, None, "bfloat16", None, "bfloat16"),
    ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 8, 1, None, None, "fp8", None, "fp8"),
    ("meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 2, 1, None, None, "nvfp4", None, "fp8"),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, 2, None, None, "fp8", None, "fp8"),
    ("meta-llama/Meta-Llama-3.1-405B", "b200_sxm", 8, 1, None, None, "nvfp4", None, "fp8"),
    ("Qwen/Qwen3-8B", "h100_sxm", 2, 1, None, None, "bfloat16", None, "bfloat16"),
    ("Qwen/Qwen3-32B", "h200_sxm", 2, 1, None, None, "fp8_block", None, "fp8"),
    ("Qwen/Qwen3-32B", "a100_sxm", 4, 1, None, None, "bfloat16", None, "bfloat16"),
    ("Qwen/Qwen3-30B-A3B", "h200_sxm", 2, 1, 1, 2, "bfloat16", "bfloat16", "bfloat16"),
    ("Qwen/Qwen3-235B-A22B", "h200_sxm", 8, 1, 1, 8, "fp8_block", "fp8_block", "fp8"),
    ("Qwen/Qwen3-235B-A22B", "h200_sxm", 8, 1, 4, 2, "bfloat16", "bfloat16", "bfloat16"),
    ("Qwen/Qwen3-1.7B", "l40s", 1, 1, None, None, "fp8", None, "fp8"),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "b200_sxm", 8, 1, 1, 8, "nvfp4", "nvfp4", "fp8"),
    ("openai/gpt-oss-120b", "h200_sxm", 2, 1, 1, 2, "bfloat16", "w4a16_mxfp4", "bfloat16"),
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", 8, 1, 1, 8, "fp8_block", "fp8_block", "bfloat16"),
)
VERSION = "current"
LIMITS = {"max_num_tokens": 8192, "max_batch_size": 64, "memory_fraction_kind": "of_free", "memory_fraction_value": 0.9}
SIZES = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "attention_bias",
    "torch_dtype",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "decoder_sparse_step",
    "mlp_only_layers",
)


def measure(case: tuple[Any, ...]) -> dict[str, Any]:
    """One configuration's figures, in bytes."""
    from aiconfigurator_core.sdk.memory import estimate_kv_cache

    model, system, tp, pp, moe_tp, moe_ep, gemm, moe, kv = case
    arguments = {
        "tp_size": tp,
        "pp_size": pp,
        "moe_tp_size": moe_tp,
        "moe_ep_size": moe_ep,
        "gemm_quant_mode": gemm,
        "moe_quant_mode": moe,
        "kvcache_quant_mode": kv,
        **LIMITS,
    }
    result = estimate_kv_cache(model, system, "trtllm", VERSION, **arguments)
    return {
        "model": model,
        "system": system,
        "arguments": arguments,
        "weights_bytes": result["memory_breakdown"]["weights_bytes"],
        "kv_bytes_per_token": result["kv_size_per_token_bytes"],
        "kv_pool_bytes": result["total_kv_size_bytes"],
        "capacity_bytes": result["total_gpu_capacity_bytes"],
        "breakdown": result["memory_breakdown"],
    }


def slots() -> dict[str, Any]:
    """Which version of TensorRT-LLM's measurements ``current`` stands for, by system."""
    import yaml

    table = yaml.safe_load((resources.files("aiconfigurator_core") / "systems/query_versions.yaml").read_text())
    named = {system: row["trtllm"]["current"] for system, row in table["overrides"].items() if "trtllm" in row}
    return {"default": table["defaults"]["trtllm"]["current"], **named}


def sizes(model: str) -> dict[str, Any]:
    """The sizes of a model as aiconfigurator knows it."""
    name = model.replace("/", "--") + "_config.json"
    text = (resources.files("aiconfigurator_core") / "model_configs" / name).read_text(encoding="utf-8")
    config = json.loads(text)
    return {key: config[key] for key in SIZES if key in config}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file to write")
    out = parser.parse_args().out
    rows, failed = [], []
    for case in CASES:
        try:
            rows.append(measure(case))
        except ValueError as error:
            failed.append(f"{case[:2]}: {error}")
    document = {
        "tool": "aiconfigurator",
        "version": metadata.version("aiconfigurator"),
        "backend": "trtllm",
        "backend_version": VERSION,
        "backend_versions": slots(),
        "command": "python benchmarks/aiconfigurator_compare.py OUT",
        "call": "sdk.memory.estimate_kv_cache(model, system, backend, backend_version, **arguments)",
        "models": {model: sizes(model) for model in sorted({row["model"] for row in rows})},
        "rows": rows,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for line in failed:
        print(f"left out {line}", file=sys.stderr)
    print(f"{len(rows)} configurations in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
