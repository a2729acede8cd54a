"""speculators' EAGLE-3 (vLLM), from its module's arithmetic: a first layer over [embedding, hidden], then plain layers.

Id j is the hidden state after j layers, which is the input of layer j; without ids 2, n/2 and n − 3 are tapped.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tests.trtforge.drafting.oracle_parts import attend, load, mlp, rms, transformers_rotation


def run(
    folder: Path, hidden: Tensor, tokens: Tensor, steps: int, embedding: Tensor | None, lm_head: Tensor | None
) -> tuple[list[Tensor], list[int]]:
    """Logits [Vd] of each step and the drafted ids. ``hidden`` [n + 1, T, Ht]: embedding, then each layer's output."""
    config, weights = load(folder)
    layer = config["transformer_layer_config"]
    eps, count = layer["rms_norm_eps"], len(hidden) - 1
    ids = config.get("eagle_aux_hidden_state_layer_ids") or [2, count // 2, count - 3]
    x = torch.cat([hidden[j] for j in ids], dim=-1)
    if config.get("norm_before_fc"):
        x = rms(x, weights["input_norm.weight"], eps)
    if config.get("fc_norm"):
        chunks = x.chunk(len(ids), dim=-1)
        x = torch.cat([rms(part, weights[f"fc_norm.{i}.weight"], eps) for i, part in enumerate(chunks)], dim=-1)
    x = torch.nn.functional.linear(x, weights["fc.weight"])
    table = weights.get("embed_tokens.weight", embedding)
    assert table is not None
    qk_eps = eps if layer["model_type"] == "qwen3" else None
    sizes = {"heads": layer["num_attention_heads"], "kv_heads": layer["num_key_value_heads"], "qk_eps": qk_eps}
    logits, drafted = [], []
    for _ in range(steps):
        cos, sin = transformers_rotation(layer, len(tokens))
        embeds = rms(table[tokens], weights["layers.0.input_layernorm.weight"], eps)
        normed = rms(x, weights["layers.0.hidden_norm.weight"], eps)
        residual = normed if config["norm_before_residual"] else x
        read = torch.cat([embeds, normed], dim=-1)
        out = x
        for number in range(layer["num_hidden_layers"]):
            name = f"layers.{number}"
            if number > 0:
                residual, read = out, rms(out, weights[f"{name}.input_layernorm.weight"], eps)
            out = residual + attend(weights, f"{name}.self_attn", read, cos, sin, **sizes)
            out = out + mlp(weights, f"{name}.mlp", rms(out, weights[f"{name}.post_attention_layernorm.weight"], eps))
        if config.get("norm_output"):
            out = rms(out, weights["norm.weight"], eps)
            scores = out @ weights["lm_head.weight"].T
        else:
            scores = rms(out, weights["norm.weight"], eps) @ weights["lm_head.weight"].T
        logits.append(scores[-1])
        best = scores[-1].argmax()
        token = int(best + weights["d2t"][best]) if "d2t" in weights else int(best)
        drafted.append(token)
        tokens, x = torch.cat([tokens, torch.tensor([token])]), torch.cat([x, out[-1:]])
    return logits, drafted
