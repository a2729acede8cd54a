"""LongRoPE (https://arxiv.org/abs/2402.13753): which of a checkpoint's two lists of factors holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_extended(rope: Mapping[str, Any], max_positions: int | None = None) -> bool:
    """Whether the context is longer than the original one, so that the long factors hold for every sequence.

    Args:
        rope: with ``original_max_position_embeddings``, and ``max_position_embeddings`` where the next is None.
        max_positions: the model's context.
    """
    context = max_positions or rope.get("max_position_embeddings")
    original = rope.get("original_max_position_embeddings")
    return isinstance(context, int) and isinstance(original, (int, float)) and context > original
