"""SpecForge's and SGLang's EAGLE-3, from their module's arithmetic: midlayer, fc over three outputs of layers.

Layer id k taps what layer k gives; without ids layers 1, n/2 − 1 and n − 4 are tapped. The state that is fed back is
the one before ``norm``; with ``norm_output`` (EAGLE-3.1) the one after it.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from tests.trtforge.drafting.oracle_parts import attend, load, mlp, rms


def run(
    folder: Path, hidden: Tensor, tokens: Tensor, steps: int, embedding: Tensor | None, lm_head: Tensor | None
) -> tuple[list[Tensor], list[int]]:
    """Logits [Vd] of each step and the drafted ids. ``hidden`` [n + 1, T, Ht]: embedding, then each layer's output."""
    config, weights = load(folder)
    eps = config["rms_norm_eps"]
    outputs = hidden[1:]
    count = len(outputs)
    ids = config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids") or [1, count // 2 - 1, count - 4]
    states = [outputs[layer] for layer in ids]
    if config.get("fc_norm"):
        states = [rms(state, weights[f"fc_norm.{i}.weight"], eps) for i, state in enumerate(states)]
    h = torch.cat(states, dim=-1) @ weights["fc.weight"].T
    table = weights.get("embed_tokens.weight", embedding)
    assert table is not None
    logits, drafted = [], []
    for _ in range(steps):
        cos, sin = _rotation(config, len(tokens))
        read = torch.cat(
            (
                rms(table[tokens], weights["midlayer.input_layernorm.weight"], eps),
                rms(h, weights["midlayer.hidden_norm.weight"], eps),
            ),
            dim=-1,
        )
        y = h + attend(
            weights,
            "midlayer.self_attn",
            read,
            cos,
            sin,
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
        )
        y = y + mlp(weights, "midlayer.mlp", rms(y, weights["midlayer.post_attention_layernorm.weight"], eps))
        normed = rms(y, weights["norm.weight"], eps)
        logits.append((normed @ weights["lm_head.weight"].T)[-1])
        hot = logits[-1].argmax()
        token = int(hot + weights["d2t"][hot]) if "d2t" in weights else int(hot)
        drafted.append(token)
        fed = normed if config.get("norm_output", False) else y
        tokens, h = torch.cat((tokens, torch.tensor([token]))), torch.cat((h, fed[-1:]))
    return logits, drafted


def _rotation(config: dict, length: int) -> tuple[Tensor, Tensor]:
    """The four kinds that its attention knows."""
    size, base = config["head_dim"], config.get("rope_theta", 10000)
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    place = torch.arange(length, dtype=torch.float32)
    frequency = 1.0 / base ** (torch.arange(0, size, 2).float() / size)
    scale = 1.0
    if scaling["rope_type"] == "linear":
        place = place / scaling["factor"]
    elif scaling["rope_type"] == "llama3":
        first = scaling["original_max_position_embeddings"]
        long, short = first / scaling["low_freq_factor"], first / scaling["high_freq_factor"]
        changed = []
        for value in frequency.tolist():
            wave = 2 * math.pi / value
            if wave < short:
                changed.append(value)
            elif wave > long:
                changed.append(value / scaling["factor"])
            else:
                span = scaling["high_freq_factor"] - scaling["low_freq_factor"]
                part = (first / wave - scaling["low_freq_factor"]) / span
                changed.append((1 - part) * value / scaling["factor"] + part * value)
        frequency = torch.tensor(changed)
    elif scaling["rope_type"] == "yarn":
        factor, first = scaling["factor"], scaling["original_max_position_embeddings"]

        def dimension(rotations: float) -> float:
            return size * math.log(first / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dimension(scaling["beta_fast"])), 0)
        high = min(math.ceil(dimension(scaling["beta_slow"])), size - 1)
        mask = 1 - torch.clamp((torch.arange(size // 2).float() - low) / max(high - low, 0.001), 0, 1)
        frequency = frequency / factor * (1 - mask) + frequency * mask

        def mscale(value: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * value * math.log(factor) + 1.0

        scale = mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    else:
        assert scaling["rope_type"] == "default"
    angle = place[:, None] * torch.cat((frequency, frequency))[None]
    return angle.cos() * scale, angle.sin() * scale
