"""config.json of public models, the keys that decide shapes, and the record that preflight reads of them.

Figures are those of each model's config.json on the Hugging Face Hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.models.record import Experts, Model

_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _config(width: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, positions: int, **more: Any) -> Any:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "eos_token_id": 2,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": _config(576, 30, 9, 3, 1536, 49_152, 8192, tie_word_embeddings=True),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _config(2048, 22, 32, 4, 5632, 32_000, 2048),
    "meta-llama/Llama-2-7b-hf": _config(4096, 32, 32, 32, 11_008, 32_000, 4096),
    "lmsys/vicuna-7b-v1.3": _config(4096, 32, 32, 32, 11_008, 32_000, 2048),
    "meta-llama/Meta-Llama-3-8B": _config(4096, 32, 32, 8, 14_336, 128_256, 8192, eos_token_id=128_001),
    "meta-llama/Llama-3.1-8B-Instruct": _config(
        4096, 32, 32, 8, 14_336, 128_256, 131_072, rope_scaling=_LLAMA31_ROPE, eos_token_id=[128_001, 128_008, 128_009]
    ),
    "meta-llama/Llama-3.2-1B-Instruct": _config(
        2048, 16, 32, 8, 8192, 128_256, 131_072, head_dim=64, tie_word_embeddings=True,
        rope_scaling={**_LLAMA31_ROPE, "factor": 32.0}, eos_token_id=[128_001, 128_008, 128_009],
    ),
    "meta-llama/Llama-3.1-70B-Instruct": _config(
        8192, 80, 64, 8, 28_672, 128_256, 131_072, rope_scaling=_LLAMA31_ROPE, eos_token_id=[128_001, 128_008, 128_009]
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": _config(4096, 32, 32, 8, 14_336, 32_768, 32_768),
    "mistralai/Mistral-7B-v0.1": _config(4096, 32, 32, 8, 14_336, 32_000, 32_768, sliding_window=4096),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _config(4096, 32, 32, 8, 14_336, 32_000, 32_768, num_local_experts=8),
    "Qwen/Qwen2-72B-Instruct": _config(8192, 80, 64, 8, 29_568, 152_064, 32_768),
    "Qwen/Qwen2.5-7B-Instruct": _config(3584, 28, 28, 4, 18_944, 152_064, 32_768),
    "Qwen/Qwen2.5-7B-Instruct with YaRN": _config(
        3584, 28, 28, 4, 18_944, 152_064, 32_768,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": _config(896, 24, 14, 2, 4864, 151_936, 32_768, tie_word_embeddings=True),
    "THUDM/chatglm3-6b": _config(4096, 28, 32, 2, 13_696, 65_024, 8192),
    "tiiuae/falcon-7b": _config(4544, 32, 71, 1, 18_176, 65_024, 2048),
    "Qwen/Qwen1.5-1.8B-Chat": _config(2048, 24, 16, 16, 5504, 151_936, 32_768),
}  # fmt: skip


def shape(config: Mapping[str, Any], **changes: Any) -> Model:
    """The record of a configuration; ``changes`` replace its fields."""
    width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    kv_heads, ffn, vocab = config["num_key_value_heads"], config["intermediate_size"], config["vocab_size"]
    head_size = config.get("head_dim", width // heads)
    experts = config.get("num_local_experts")
    eos = config.get("eos_token_id")
    values: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "layers": layers,
        "hidden": width,
        "ffn": ffn,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "vocab": vocab,
        "max_positions": config["max_position_embeddings"],
        "tied": bool(config.get("tie_word_embeddings")),
        "rope": config.get("rope_scaling") or {"rope_type": "default"},
        "windows": (config.get("sliding_window") or 0,) * layers,
        "moe": Experts(experts, 2, ffn) if experts else None,
        "eos_token_ids": tuple(eos) if isinstance(eos, list) else (eos,) if eos is not None else (),
    }
    return Model(**{**values, **changes})


def public(name: str, **changes: Any) -> Model:
    """The record of a public model."""
    return shape(CONFIGS[name], **changes)
