"""Pre-norm decoders: grouped-query attention, rotary embeddings, SiLU-gated MLPs, a norm in front of each half.

Everything else is what the class's row and config.json say: biases, norms of q and k, tied embeddings, fused
projections, each layer's sliding window, layers that rotate nothing or only a part of each head, factors.
"""

from __future__ import annotations

from builder.graphs.blocks import Blocks
from builder.graphs.emitter import scope_of


def write(blocks: Blocks) -> None:
    """Write the whole model's nodes, from input_ids to logits."""
    hidden, caches = blocks.begin()
    for layer in range(blocks.config.layers):
        module = f"model.layers.{layer}"
        scope = scope_of(module)
        normed = blocks.norm(f"{module}.input_layernorm", hidden)
        attended = blocks.attention(f"{module}.self_attn", normed, caches, layer)
        hidden = blocks.add(hidden, attended, f"{scope}/attention_residual")
        normed = blocks.norm(f"{module}.post_attention_layernorm", hidden)
        expanded = blocks.gated_mlp(f"{module}.mlp", normed, bias=blocks.config.mlp_bias)
        hidden = blocks.add(hidden, expanded, f"{scope}/mlp_residual", output=f"hidden_states_{layer + 1}")
    blocks.logits(hidden, "model.norm", "lm_head", "model.embed_tokens")
