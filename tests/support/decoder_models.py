"""A tiny random checkpoint of any row of ``trtforge/tables/decoders.yaml``, written by transformers, the oracle.

A row says itself what its class can have; :func:`variants` switches all of it on, so that a new row is tested without
a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.tiny import BOS_ID, EOS_ID, write_tokenizer
from trtforge.tables.decoders import Decoder, decoders

VOCABULARY, POSITIONS = 512, 1024
#: head_dim is hidden_size / num_attention_heads: some classes have no key for it
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}


def variants(row: Decoder) -> dict[str, dict[str, Any]]:
    """Entries of config.json by the variant's name: a class as it comes, with everything that its row switches on and
    an output head of its own, and with an odd number of wide heads over one."""
    everything: dict[str, Any] = {"tie_word_embeddings": False}
    everything |= {rule: True for rule in (row.qkv_bias, row.o_bias, row.mlp_bias) if isinstance(rule, str)}
    if row.window == "always":
        everything["sliding_window"] = 11
    if row.window == "switched":
        everything |= {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    if row.nope is not None:
        everything[row.nope.interval] = 2
    if row.factors is not None:  # none of them a power of two, which a type of 16 bits would hold exactly
        keys = row.factors
        everything |= {keys.embedding: 3.3, keys.attention: 0.11, keys.residual: 0.37, keys.logits: 1.7}
    rotary = 64
    if row.partial_rotary:
        everything["partial_rotary_factor"], rotary = 0.75, 48
    if "longrope" in row.rope_types:
        everything |= _longrope(rotary, original=4)
        wide_rope = _longrope(80, original=POSITIONS)
    else:
        wide_rope = {}
    wide = {"hidden_size": 240, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 80}
    return {"plain": {}, "everything": everything, "wide": {**wide, **wide_rope, "tie_word_embeddings": False}}


def _longrope(rotary: int, *, original: int) -> dict[str, Any]:
    """A context longer than the original one, so that every prompt has the long factors, or just as long."""
    pairs = range(rotary // 2)
    factors = {"short_factor": [1 + 0.01 * i for i in pairs], "long_factor": [1.5 + 0.2 * i for i in pairs]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": original, **factors}
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def write_decoder(
    directory: Path, architecture: str, changes: Mapping[str, Any] | None = None, *, dtype: str = "bfloat16"
) -> Path:
    """Write a checkpoint of ``architecture`` with ``changes`` to its config.json into ``directory`` and return it.

    Every tensor is random, norms and biases too: one that is lost or taken for another shows in the logits.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    row = decoders()[architecture]
    window = {"sliding_window": None} if row.window == "always" else {}
    config = AutoConfig.for_model(row.model_type, **{**_SIZES, **window, **(changes or {})})
    model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                values = 1 + 0.1 * values
            elif parameter.dim() == 1:
                values = 0.1 * values
            else:
                tables = ("embed_tokens.weight", "lm_head.weight")
                values = values * (0.3 if name.endswith(tables) else parameter.shape[1] ** -0.5)
            parameter.copy_(values)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    write_tokenizer(directory, VOCABULARY, POSITIONS)
    return directory
