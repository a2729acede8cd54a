"""What TensorRT-LLM's PyTorch backend computes of a head that its loader took.

``layers.N`` become ``midlayer`` (one layer) or ``midlayer.N``; in every layer ``hidden_norm`` stands before the
attention; the embedding is the target's unless the widths differ, and so is lm_head where none is stored.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from tests.trtforge.drafting.oracle_parts import attend, load, mlp, rms, transformers_rotation


def run(
    folder: Path, hidden: Tensor, tokens: Tensor, steps: int, embedding: Tensor | None, lm_head: Tensor | None
) -> tuple[list[Tensor], list[int]]:
    """Logits [Vd] of each step and the drafted ids. ``hidden`` [n + 1, T, Ht]: embedding, then each layer's output."""
    config, stored = load(folder)
    layers, eps = config["num_hidden_layers"], config["rms_norm_eps"]
    eagle = config.get("eagle_config", {})
    one = layers == 1
    weights = {
        re.sub(r"^layers\.0\." if one else r"^layers\.(\d+)\.", "midlayer." if one else r"midlayer.\1.", name): value
        for name, value in stored.items()
    }
    count = len(hidden) - 1
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") or [1, count // 2 - 1, count - 4]
    state = torch.cat([hidden[k + 1] for k in ids], dim=-1)
    if config.get("fc_norm", False):
        chunks = state.chunk(len(ids), dim=-1)
        state = torch.cat([rms(c, weights[f"fc_norm.{i}.weight"], eps) for i, c in enumerate(chunks)], dim=-1)
    elif eagle.get("norm_before_fc", False):
        state = rms(state, weights["input_norm.weight"], eps)
    bias = weights["fc.bias"] if config.get("bias", False) else None
    state = torch.nn.functional.linear(state, weights["fc.weight"], bias)
    own = config.get("target_hidden_size", config["hidden_size"]) != config["hidden_size"]
    table = weights["embed_tokens.weight"] if own else embedding
    head = weights.get("lm_head.weight", lm_head)
    assert table is not None and head is not None
    post_norm = eagle.get("return_hidden_post_norm", False) or config.get("norm_output", False)
    logits, drafted = [], []
    for _ in range(steps):
        cos, sin = transformers_rotation(config, len(tokens))
        inner, residual = state, None
        for number in range(layers):
            name = "midlayer" if one else f"midlayer.{number}"
            if residual is not None:
                inner = inner + residual
            residual = inner
            inner = rms(inner, weights[f"{name}.hidden_norm.weight"], eps)
            if number == 0:
                embeds = rms(table[tokens], weights[f"{name}.input_layernorm.weight"], eps)
                inner = torch.cat([embeds, inner], dim=-1)
            inner = attend(
                weights,
                f"{name}.self_attn",
                inner,
                cos,
                sin,
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
            )
            residual = inner + residual
            inner = mlp(weights, f"{name}.mlp", rms(residual, weights[f"{name}.post_attention_layernorm.weight"], eps))
        saved = inner + residual
        normed = rms(saved, weights["norm.weight"], eps)
        logits.append((normed @ head.T)[-1])
        token = int(logits[-1].argmax())
        if config["vocab_size"] != config["draft_vocab_size"]:
            assert weights["d2t"].dtype == torch.int32
            token += int(weights["d2t"][token])
        drafted.append(token)
        fed = normed if post_norm else saved
        tokens, state = torch.cat([tokens, torch.tensor([token])]), torch.cat([state, fed[-1:]])
    return logits, drafted
