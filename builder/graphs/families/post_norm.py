"""Decoders whose norms are behind attention and MLP, on what is added to the residual stream, and not in front."""

from __future__ import annotations

from builder.graphs.blocks import Blocks
from builder.graphs.emitter import scope_of


def write(blocks: Blocks) -> None:
    """Write the whole model's nodes, from input_ids to logits."""
    hidden, caches = blocks.begin()
    for layer in range(blocks.config.layers):
        module = f"model.layers.{layer}"
        scope = scope_of(module)
        attended = blocks.attention(f"{module}.self_attn", hidden, caches, layer)
        normed = blocks.norm(f"{module}.post_attention_layernorm", attended)
        hidden = blocks.add(hidden, normed, f"{scope}/attention_residual")
        expanded = blocks.gated_mlp(f"{module}.mlp", hidden, bias=blocks.config.mlp_bias)
        normed = blocks.norm(f"{module}.post_feedforward_layernorm", expanded)
        hidden = blocks.add(hidden, normed, f"{scope}/mlp_residual", output=f"hidden_states_{layer + 1}")
    blocks.logits(hidden, "model.norm", "lm_head", "model.embed_tokens")
