"""The Llama family: every class of ``trtforge/tables/decoders.yaml`` that names it.

Pre-norm decoder with grouped-query attention, rotary embeddings and SiLU-gated MLPs; biases, norms of q and k, tied
embeddings and each layer's sliding window as the class's row and config.json say. The residual stream after layer i
is the value ``hidden_states_{i+1}`` (0: the embeddings) whatever else changes in the graph: drafts ask for it by name.
"""

from __future__ import annotations

from builder.graphs.blocks import Blocks
from builder.graphs.emitter import scope_of


def write(blocks: Blocks) -> None:
    """Write the whole model's nodes, from input_ids to logits."""
    config = blocks.config
    blocks.declare_inputs()
    blocks.emitter.output("logits", 1, ["L", config.vocab])
    hidden = blocks.embedding("model.embed_tokens", "input_ids", "hidden_states_0")
    caches = blocks.rotary_caches("/model/rotary_emb")
    for layer in range(config.layers):
        module = f"model.layers.{layer}"
        scope = scope_of(module)
        normed = blocks.norm(f"{module}.input_layernorm", hidden)
        attended = blocks.attention(f"{module}.self_attn", normed, caches, layer)
        hidden = blocks.add(hidden, attended, f"{scope}/attention_residual")
        normed = blocks.norm(f"{module}.post_attention_layernorm", hidden)
        expanded = blocks.gated_mlp(f"{module}.mlp", normed, bias=config.mlp_bias)
        hidden = blocks.add(hidden, expanded, f"{scope}/mlp_residual", output=f"hidden_states_{layer + 1}")
    blocks.logits(hidden, "model.norm", "lm_head", "model.embed_tokens")
