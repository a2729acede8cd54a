"""What all oracles stand on: norm, attention and MLP of a Llama layer, and raw checkpoints. Nothing of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def rms(values: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * (values / (values.pow(2).mean(-1, keepdim=True) + eps).sqrt())


def attend(
    weights: dict[str, Tensor],
    prefix: str,
    read: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    kv_heads: int,
    qk_eps: float | None = None,
) -> Tensor:
    """Causal grouped attention over a whole text; ``cos`` and ``sin`` are [T, head size], both halves alike."""
    length = read.shape[0]

    def linear(name: str, values: Tensor) -> Tensor:
        bias = weights.get(f"{prefix}.{name}.bias")
        out = values @ weights[f"{prefix}.{name}.weight"].T
        return out if bias is None else out + bias

    query = linear("q_proj", read).view(length, heads, -1).transpose(0, 1)
    key = linear("k_proj", read).view(length, kv_heads, -1).transpose(0, 1)
    value = linear("v_proj", read).view(length, kv_heads, -1).transpose(0, 1)
    if qk_eps is not None:
        query = rms(query, weights[f"{prefix}.q_norm.weight"], qk_eps)
        key = rms(key, weights[f"{prefix}.k_norm.weight"], qk_eps)

    def turned(part: Tensor) -> Tensor:
        half = part.shape[-1] // 2
        return part * cos + torch.cat((-part[..., half:], part[..., :half]), dim=-1) * sin

    mixed = torch.nn.functional.scaled_dot_product_attention(
        turned(query)[None], turned(key)[None], value[None], is_causal=True, enable_gqa=True
    )[0]
    return linear("o_proj", mixed.transpose(0, 1).reshape(length, -1))


def mlp(weights: dict[str, Tensor], prefix: str, values: Tensor) -> Tensor:
    def linear(name: str, rows: Tensor) -> Tensor:
        bias = weights.get(f"{prefix}.{name}.bias")
        out = rows @ weights[f"{prefix}.{name}.weight"].T
        return out if bias is None else out + bias

    gate = linear("gate_proj", values)
    return linear("down_proj", gate * torch.sigmoid(gate) * linear("up_proj", values))


def transformers_rotation(layer: dict[str, Any], length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, head size] as transformers computes them from a Llama's config.json."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    keys = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings", "rope_theta", "rope_scaling")
    # the rotation alone is asked for; a copy, because transformers writes into what it is given
    config = LlamaConfig(**json.loads(json.dumps({key: layer[key] for key in keys if layer.get(key) is not None})))
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, length, 1), torch.arange(length)[None])
    return cos[0], sin[0]
