"""Writes the repository of a recipe's layout for an engine or checkpoint that lies somewhere on this machine.

A bundle has fixed places, so its stages call the layouts themselves; this is for a repository that is
emitted by hand: the references are worked out from where the folders are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triton_repo.layouts.modules import layout_module
from triton_repo.layouts.sources import require_served
from triton_repo.layouts.writing import writing
from triton_repo.validate import require_valid
from trtforge.recipe.load import LoadedRecipe


def emit_for(
    loaded: LoadedRecipe, source: Path, out: Path, *, name: str = "model", tokenizer: Path | None = None
) -> dict[str, Any]:
    """Write and check the repository.

    Args:
        loaded: the recipe; its ``triton.layout`` decides.
        source: the engine (``native``, ``inflight_batcher_llm``) or the checkpoint (``llmapi``).
        name: the model's name where the layout leaves it open (``native``).
        tokenizer: folder of ``tokenizer.json``, where it is not beside the engine.

    Raises:
        ForgeError: TF-TRI-021 (a fault that the check finds), TF-TRI-068 (no tokenizer or checkpoint
            there), TF-TRI-069 (a draft model or adapter that is no folder here), TF-TRI-070 (the layout does not
            serve what lies there), TF-TRI-264 (a drafter that needs a conversion), and the layout's own.
    """
    recipe = loaded.recipe
    require_served(source, recipe.triton.layout)
    # checked before it is in place; it stands beside its place, so that relative references hold already
    with writing(out) as folder:
        summary = layout_module(recipe.layout).by_hand(loaded, source, folder, name=name, tokenizer=tokenizer)
        require_valid(folder, source if recipe.layout.own_runtime else None, place=out)
    return summary
