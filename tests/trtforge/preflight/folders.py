"""Folders of models, drafts and adapters as people have them, a few bytes each: configs, headers, scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny import write_safetensors

TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|eot_id|>{% endfor %}"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4976698672\n"


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def zeros(*shape: int, dtype: str = "BF16") -> tuple[str, np.ndarray]:
    size = {"BF16": np.uint16, "F16": np.uint16, "F32": np.float32, "F8_E4M3": np.uint8, "U8": np.uint8}[dtype]
    return dtype, np.zeros(shape, dtype=size)


def scale(value: float) -> tuple[str, np.ndarray]:
    return "F32", np.array(value, dtype=np.float32)


def write_weights(folder: Path, tensors: dict[str, tuple[str, np.ndarray]], name: str = "model.safetensors") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / name, tensors)


def write_model(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    generation: dict[str, Any] | None = None,
    tokens: dict[str, int] | None = None,
    added: dict[str, int] | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    tokenizer: bool = True,
) -> Path:
    """A folder with the small files of a chat model; weights of two bytes."""
    write_json(folder / "config.json", {"hidden_size": 8, "vocab_size": 100, "eos_token_id": 2, **(config or {})})
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    listed = [{"id": number, "content": text} for text, number in (added or {"<|eot_id|>": 99}).items()]
    if tokenizer:
        write_json(
            folder / "tokenizer.json",
            {"model": {"type": "BPE", "vocab": tokens or {"a": 0, "b": 1, "</s>": 2}}, "added_tokens": listed},
        )
    write_json(folder / "tokenizer_config.json", tokenizer_config or {})
    write_weights(folder, {"model.norm.weight": zeros(1)})
    return folder


def quantized_tensors(layers: int = 2, *, k_scale: float = 0.02, input_scale: float = 0.01) -> dict[str, Any]:
    """An FP8 checkpoint as ModelOpt exports it: linears with scales, KV scales, a plain head."""
    tensors: dict[str, Any] = {"lm_head.weight": zeros(4, 8), "model.embed_tokens.weight": zeros(4, 8)}
    for layer in range(layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"):
            prefix = f"model.layers.{layer}.{name}"
            tensors[f"{prefix}.weight"] = zeros(8, 8, dtype="F8_E4M3")
            tensors[f"{prefix}.weight_scale"] = scale(0.5)
            tensors[f"{prefix}.input_scale"] = scale(input_scale)
        for name in ("k_proj.k_scale", "v_proj.v_scale"):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = scale(k_scale)
    return tensors


def write_quantized(
    folder: Path,
    *,
    tensors: dict[str, Any] | None = None,
    without: str | None = None,
    changed: dict[str, Any] | None = None,
    exclude: tuple[str, ...] = ("lm_head",),
    algorithm: str = "FP8",
    kv: str | None = "FP8",
) -> Path:
    """An exported checkpoint; tensors whose name ends in ``without`` are left out, ``changed`` replaces others."""
    write_model(folder)
    found = {**(tensors or quantized_tensors()), **(changed or {})}
    if without is not None:
        found = {name: value for name, value in found.items() if not name.endswith(without)}
    write_weights(folder, found)
    description = {"quant_algo": algorithm, "kv_cache_quant_algo": kv, "exclude_modules": list(exclude)}
    write_json(folder / "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": description})
    return folder


def write_adapter(
    folder: Path,
    *,
    rank: int = 8,
    modules: tuple[str, ...] = ("q_proj", "v_proj"),
    width: int = 576,
    rows: dict[str, int] | None = None,
    dtype: str = "F16",
    config: dict[str, Any] | None = None,
) -> Path:
    """A PEFT adapter of a model of SmolLM2-135M's shape."""
    sizes = {"q_proj": 576, "k_proj": 192, "v_proj": 192, "o_proj": 576, **(rows or {})}
    tensors = {}
    for module in modules:
        prefix = f"base_model.model.model.layers.0.self_attn.{module}"
        tensors[f"{prefix}.lora_A.weight"] = zeros(rank, width, dtype=dtype)
        tensors[f"{prefix}.lora_B.weight"] = zeros(sizes.get(module, width), rank, dtype=dtype)
    write_weights(folder, tensors, "adapter_model.safetensors")
    write_json(
        folder / "adapter_config.json",
        {"peft_type": "LORA", "r": rank, "target_modules": list(modules), "bias": "none", **(config or {})},
    )
    return folder


def write_draft(folder: Path, *, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Path:
    """A draft of SmolLM2-135M's vocabulary and width."""
    write_json(folder / "config.json", {"vocab_size": 49_152, "hidden_size": 576, **(config or {})})
    write_weights(folder, tensors or {"0.linear.weight": zeros(2, 2), "1.linear.weight": zeros(2, 2)})
    return folder
