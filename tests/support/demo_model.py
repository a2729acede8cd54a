"""Runs on the demo model, whose checkpoint comes from the package registry."""

from __future__ import annotations

import os

import pytest

from trtforge.ground.errors import ForgeError
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.pipeline.pipeline import RunResult
from trtforge.recipe.load import LoadedRecipe
from trtforge.store.store import Store


def run_demo_model(store: Store, recipe: LoadedRecipe, until: str) -> RunResult:
    """A run up to a stage; skips the test where the checkpoint cannot be downloaded, which in CI is a failure."""
    try:
        return default_pipeline(store).run(recipe, until=until, only_needed=True, capture_output=True)
    except ForgeError as error:
        if error.code == "TF-SRC-019" and not os.environ.get("CI"):
            pytest.skip(f"SmolLM2 is not cached here: {error.message}")
        raise
