"""The sliding windows with which a recipe's engine is served."""

from __future__ import annotations

from trtforge.models.kv_window import PARAMETER, KvWindows, parse_windows
from trtforge.models.record import Model
from trtforge.recipe.schema import Recipe


def kv_windows(recipe: Recipe, model: Model) -> KvWindows:
    """The windows with which the recipe's engine is served: the recipe's parameter, else the model's own."""
    build, layers = recipe.build, model.layers
    if not recipe.target.trtllm_build:
        return KvWindows((0,) * layers)
    given = parse_windows(recipe.triton.parameters.get(PARAMETER, ""))
    windows = [given[layer % len(given)] for layer in range(layers)] if given else model.windows or (0,) * layers
    limits = build.limits
    return KvWindows(
        tuple(value if value < limits.max_seq_len else 0 for value in windows),
        limits.max_input_len or limits.max_seq_len - 1,
        build.trtllm.paged_context_attention,
    )
