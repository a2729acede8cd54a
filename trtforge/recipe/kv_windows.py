"""The sliding windows with which a recipe's engine is served."""

from __future__ import annotations

from trtforge.models.kv_window import PARAMETER, KvWindows, parse_windows
from trtforge.recipe.schema import Recipe


def kv_windows(recipe: Recipe, layers: int, window: int = 0, window_layers: int | None = None) -> KvWindows:
    """The windows with which the recipe's engine is served.

    Args:
        layers: the model's layers.
        window: the model's own sliding window, 0 for none.
        window_layers: how many layers have it; None: all.
    """
    build = recipe.build
    if not recipe.target.trtllm_build:
        return KvWindows((0,) * layers)
    given = parse_windows(recipe.triton.parameters.get(PARAMETER, ""))
    if given:
        windows = [given[layer % len(given)] for layer in range(layers)]
    else:
        sliding = layers if window_layers is None else window_layers
        windows = [window] * sliding + [0] * (layers - sliding)
    limits = build.limits
    return KvWindows(
        tuple(value if value < limits.max_seq_len else 0 for value in windows),
        limits.max_input_len or limits.max_seq_len - 1,
        build.trtllm.paged_context_attention,
    )
