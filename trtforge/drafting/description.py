"""What an EAGLE-3 drafter is, whatever dialect it is written in.

Notation: H the drafter's width, Ht the target's, V the target's vocabulary, Vd the drafter's.

    x   = concat(tap_0 … tap_m-1)                                 [m·Ht]
    x   = input_norm(x) with norm_before_fc;  fc_norm[i] on each tap with fc_norm
    h   = fc(x)                                                    first step; the fed-back state [H] afterwards
    a   = concat(input_layernorm(embedding), hidden_norm(h))       [2H], what q, k and v of layer 0 read
    r   = hidden_norm(h) with norm_before_residual, else h
    y   = r + attention(a);  y = y + mlp(post_attention_layernorm(y));  further layers are ordinary ones
    logits = lm_head(norm(y)) [Vd];  fed back: norm(y) with norm_output, else y
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: how taps are numbered everywhere in this project
NUMBERING = "output of layer k, 0-based"


@dataclass(frozen=True)
class Rope:
    """The rotation of queries and keys.

    Attributes:
        theta: the base.
        scaling: ``rope_type`` and its parameters, all written out; empty for none.
        explicit: whether config.json gives the base; otherwise it is the default of the code that trained it.
    """

    theta: float
    scaling: Mapping[str, Any] = field(default_factory=dict)
    explicit: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {"theta": self.theta, "theta_written": self.explicit, "scaling": dict(self.scaling) or None}


@dataclass(frozen=True)
class Eagle3:
    """An EAGLE-3 drafter's sizes, taps and flags; equal descriptions compute the same from equal tensors.

    Attributes:
        taps: layers of the target whose outputs are read, 0-based; None where the dialect's default is meant.
        tap_count: number of taps, by the width of ``fc``.
        head_size: values of one attention head.
        attention_bias: of q, k, v and o.
        mapped: whether ``d2t`` is stored.
    """

    hidden_size: int
    target_hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    eps: float
    act: str
    taps: tuple[int, ...] | None
    tap_count: int
    rope: Rope
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    mapped: bool = True
    own_embedding: bool = False
    own_head: bool = True
    dtype: str = "BF16"
    max_positions: int | None = None

    def default_taps(self, target_layers: int) -> tuple[int, ...]:
        """What every dialect reads from a target of so many layers where config.json names no taps."""
        return (1, max(0, target_layers // 2 - 1), max(0, target_layers - 4))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of such a drafter under their canonical names, without maps, embedding and head."""
        width, ffn, size = self.hidden_size, self.intermediate_size, self.head_size
        queries, keys = self.heads * size, self.kv_heads * size
        wanted: dict[str, tuple[int, ...]] = {
            "fc.weight": (width, self.tap_count * self.target_hidden_size),
            "norm.weight": (width,),
            "layers.0.hidden_norm.weight": (width,),
        }
        if self.fc_bias:
            wanted["fc.bias"] = (width,)
        if self.norm_before_fc:
            wanted["input_norm.weight"] = (self.tap_count * self.target_hidden_size,)
        if self.fc_norm:
            wanted |= {f"fc_norm.{tap}.weight": (self.target_hidden_size,) for tap in range(self.tap_count)}
        for layer in range(self.layers):
            name, reads = f"layers.{layer}", width if layer else 2 * width
            wanted[f"{name}.input_layernorm.weight"] = (width,)
            wanted[f"{name}.post_attention_layernorm.weight"] = (width,)
            if self.qk_norm:
                wanted |= {f"{name}.self_attn.{part}_norm.weight": (size,) for part in "qk"}
            linears = {
                "self_attn.q_proj": ((queries, reads), self.attention_bias),
                "self_attn.k_proj": ((keys, reads), self.attention_bias),
                "self_attn.v_proj": ((keys, reads), self.attention_bias),
                "self_attn.o_proj": ((width, queries), self.attention_bias),
                "mlp.gate_proj": ((ffn, width), self.mlp_bias),
                "mlp.up_proj": ((ffn, width), self.mlp_bias),
                "mlp.down_proj": ((width, ffn), self.mlp_bias),
            }
            for linear, (shape, bias) in linears.items():
                wanted[f"{name}.{linear}.weight"] = shape
                if bias:
                    wanted[f"{name}.{linear}.bias"] = shape[:1]
        return wanted
