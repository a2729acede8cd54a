"""A head that ModelOpt exported, as vLLM and TensorRT-LLM compute it: ``layers.N``, outputs of layers, raw residual.

ModelOpt's own training module also puts ``input_layernorm`` before ``hidden_norm`` (see test_modelopt_module.py); what
serves its checkpoints does not, and those servers are who the dialect is for.
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
    eps, count = config["rms_norm_eps"], len(hidden) - 1
    wanted = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    ids = wanted or sorted({1, max(0, count // 2 - 1), max(0, count - 4)})
    collected = [hidden[layer + 1] for layer in range(count) if layer in ids]
    h = torch.cat(collected, dim=-1) @ weights["fc.weight"].T
    head = weights.get("lm_head.weight", lm_head)
    assert head is not None and embedding is not None and "embed_tokens.weight" not in weights
    logits, drafted = [], []
    for _ in range(steps):
        cos, sin = transformers_rotation(config, len(tokens))
        inner = h
        for number in range(config["num_hidden_layers"]):
            name, residual = f"layers.{number}", inner
            if number == 0:
                embeds = rms(embedding[tokens], weights["layers.0.input_layernorm.weight"], eps)
                read = torch.cat((embeds, rms(inner, weights["layers.0.hidden_norm.weight"], eps)), dim=-1)
            else:
                read = rms(inner, weights[f"{name}.input_layernorm.weight"], eps)
            inner = residual + attend(
                weights,
                f"{name}.self_attn",
                read,
                cos,
                sin,
                heads=config["num_attention_heads"],
                kv_heads=config["num_key_value_heads"],
            )
            after = rms(inner, weights[f"{name}.post_attention_layernorm.weight"], eps)
            inner = inner + mlp(weights, f"{name}.mlp", after)
        logits.append((rms(inner, weights["norm.weight"], eps) @ head.T)[-1])
        token = int(logits[-1].argmax())
        if config["draft_vocab_size"] != config["vocab_size"]:
            token += int(weights["d2t"][token])
        drafted.append(token)
        tokens, h = torch.cat((tokens, torch.tensor([token]))), torch.cat((h, inner[-1:]))
    return logits, drafted
