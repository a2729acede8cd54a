"""Which decoders the planner's arithmetic is true for: softmax attention, a gated MLP, RMS norms, per layer.

Policy: a type whose layers are something else (state spaces, linear attention, encoders, an MLP of two matrices) is
refused, because its bytes and operations would be wrong and look right. A type that nobody entered in
``trtforge/tables/decoders.yaml`` is planned when its config has every size of such a decoder, and the plan says that it
assumes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.planner.types import bad_input
from trtforge.tables.decoders import decoder_table, known_types

_ATTENTION = frozenset({"full_attention", "sliding_attention"})


def check_family(config: Mapping[str, Any], kind: str, architecture: str) -> list[str]:
    """What the plan assumes about a model of this type; empty for a known one.

    Raises:
        ForgeError: ``TF-PLN-015`` its layers are not what the planner computes.
    """
    table = decoder_table()
    why = next((row.why for row in table.uncounted if kind in row.types), None)
    if why is None and config.get("is_encoder_decoder") is True:
        why = "it is an encoder, or has one"
    if why is not None:
        raise _other(kind, architecture, why)
    types = config.get("layer_types")
    if isinstance(types, list):
        strange = sorted({str(name) for name in types} - _ATTENTION)
        if strange:
            raise _other(kind, architecture, f"layer_types names {strange[0][:40]}")
    if kind in known_types():
        return []
    for row in table.uncounted:
        found = next((key for key in row.marks if config.get(key)), None)
        if found is not None:
            raise _other(kind, architecture, f"{row.why} (its config has {found})")
    return [
        f"{architecture} (model_type {kind or 'not given'}) is not in the planner's table: every figure assumes "
        "Llama's layers (q, k, v, o; gate, up, down; two norms; softmax attention over every token)"
    ]


def _other(kind: str, architecture: str, why: str) -> Exception:
    return bad_input(
        "TF-PLN-015",
        f"{architecture} is no decoder that the planner can compute: {why}",
        asked=f"model_type {kind}" if kind else architecture,
        why="Weights, KV cache and operations are counted for softmax attention and gated MLPs in every layer.",
        remedies=[
            f"a model of a type that is known: {', '.join(known_types()[:12])} …",
            "measure it on the GPU instead",
        ],
        known=list(known_types()),
    )
