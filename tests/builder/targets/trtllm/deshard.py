"""TensorRT-LLM's rank files put together and de-quantized again, written from the format's description alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trtforge.ground.safetensors_header import read_header

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


NUMPY = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}


def load_file(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of one file."""
    data = path.read_bytes()
    return {
        name: np.frombuffer(data, NUMPY[info.dtype], info.elements, info.offset).reshape(info.shape)
        for name, info in read_header(path)[0].items()
    }


def load_ranks(directory: Path) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """config.json and every rank's tensors, by number (BF16 and FP8 as ml_dtypes' types)."""
    config = json.loads((directory / "config.json").read_text())
    world = config["mapping"]["world_size"]
    assert sorted(path.name for path in directory.glob("*.safetensors")) == sorted(
        f"rank{rank}.safetensors" for rank in range(world)
    )
    return config, [load_file(directory / f"rank{rank}.safetensors") for rank in range(world)]


def nibbles(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = packed.view(np.uint8)
    return bits & 0xF, bits >> 4


def linear(tensors: dict[str, np.ndarray], name: str, algorithm: str | None) -> np.ndarray:
    """float32 [N, K] of one rank's linear."""
    weight = tensors[f"{name}.weight"]
    if f"{name}.weights_scaling_factor" not in tensors:
        return weight.astype(np.float32)
    scale = tensors[f"{name}.weights_scaling_factor"].astype(np.float32)
    if algorithm == "FP8":
        assert weight.dtype == ml_dtypes.float8_e4m3fn and scale.shape == (1,)
        return weight.astype(np.float32) * scale
    if algorithm == "W4A16_AWQ":
        assert weight.dtype == np.int8
        low, high = nibbles(weight)
        values = np.stack([low, high], axis=1).reshape(-1, weight.shape[1]).astype(np.int8)
        values = np.where(values > 7, values - 16, values).astype(np.float32)
    else:
        assert algorithm == "NVFP4" and weight.dtype == np.uint8
        low, high = nibbles(weight)
        values = FP4[np.stack([low, high], axis=2).reshape(weight.shape[0], -1)]
        scale = scale * tensors[f"{name}.weights_scaling_factor_2"]
    return values * np.repeat(scale, values.shape[1] // scale.shape[1], axis=1)


def deshard(directory: Path) -> dict[str, np.ndarray]:
    """float32 tensors of the whole model by Hugging Face's names; vocabulary padding is cut off and must be zero."""
    config, ranks = load_ranks(directory)
    tp, pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    algorithm = config["quantization"]["quant_algo"]
    heads, kv, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    vocab = config["vocab_size"]
    model: dict[str, np.ndarray] = {}

    def whole(name: str, stage: list[dict[str, np.ndarray]], axis: int) -> np.ndarray:
        return np.concatenate([linear(tensors, name, algorithm) for tensors in stage], axis=axis)

    def table(name: str, stage: list[dict[str, np.ndarray]]) -> np.ndarray:
        rows = whole(name, stage, 0)
        assert not rows[vocab:].any()
        return rows[:vocab]

    def same(name: str, stage: list[dict[str, np.ndarray]]) -> np.ndarray:
        assert all(np.array_equal(stage[0][name], tensors[name]) for tensors in stage)
        return stage[0][name].astype(np.float32)

    layer = 0
    for index in range(pp):
        stage = ranks[index * tp : (index + 1) * tp]
        assert ("transformer.vocab_embedding.weight" in stage[0]) == (index == 0)
        assert ("lm_head.weight" in stage[0]) == ("transformer.ln_f.weight" in stage[0]) == (index == pp - 1)
        if index == 0:
            model["model.embed_tokens.weight"] = table("transformer.vocab_embedding", stage)
        if index == pp - 1:
            model["model.norm.weight"] = same("transformer.ln_f.weight", stage)
            model["lm_head.weight"] = table("lm_head", stage)
        local = 0
        while f"transformer.layers.{local}.input_layernorm.weight" in stage[0]:
            out, name = f"transformer.layers.{local}", f"model.layers.{layer}"
            model[f"{name}.input_layernorm.weight"] = same(f"{out}.input_layernorm.weight", stage)
            model[f"{name}.post_attention_layernorm.weight"] = same(f"{out}.post_layernorm.weight", stage)
            queries, keys, values = [], [None] * kv, [None] * kv
            for number, tensors in enumerate(stage):
                rows = linear(tensors, f"{out}.attention.qkv", algorithm)
                own = max(1, kv // tp)
                q, k, v = np.split(rows, [heads // tp * size, (heads // tp + own) * size])
                queries.append(q)
                for offset in range(own):
                    head = number * kv // tp + offset
                    for target, part in ((keys, k), (values, v)):
                        found = part[offset * size : (offset + 1) * size]
                        assert target[head] is None or np.array_equal(target[head], found)
                        target[head] = found
            model[f"{name}.self_attn.q_proj.weight"] = np.concatenate(queries)
            model[f"{name}.self_attn.k_proj.weight"] = np.concatenate(keys)
            model[f"{name}.self_attn.v_proj.weight"] = np.concatenate(values)
            model[f"{name}.self_attn.o_proj.weight"] = whole(f"{out}.attention.dense", stage, 1)
            model[f"{name}.mlp.gate_proj.weight"] = whole(f"{out}.mlp.fc", stage, 0)
            model[f"{name}.mlp.up_proj.weight"] = whole(f"{out}.mlp.gate", stage, 0)
            model[f"{name}.mlp.down_proj.weight"] = whole(f"{out}.mlp.proj", stage, 1)
            layer, local = layer + 1, local + 1
    assert layer == config["num_hidden_layers"]
    return model
