"""The fields of a model that its class decides: what the row of the decoder table makes of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.tables.decoders import Decoder, truth


def class_fields(row: Decoder, config: Mapping[str, Any], layers: int, head_size: int) -> dict[str, Any]:
    """Fields of :class:`~trtforge.models.record.Model` by name, sizes and rope apart.

    Raises:
        ValueError: a key of the configuration is not what the class reads; says which.
    """
    rotary, rotates = row.rotary_size(config, head_size), row.rotates(config, layers)
    return {
        "architecture": row.architecture,
        "family": row.family,
        "tied": truth(config, "tie_word_embeddings", row.tied),
        "attention_bias": row.bias("qkv", config),
        "o_bias": row.bias("o", config),
        "mlp_bias": row.bias("mlp", config),
        "qk_norm": row.qk_norm,
        "norms": row.norms,
        "fused": row.fused,
        "windows": row.layer_windows(config, layers),
        "rotates": () if all(rotates) else rotates,
        "rotary_size": 0 if rotary == head_size else rotary,
        "factors": row.read_factors(config),
    }
