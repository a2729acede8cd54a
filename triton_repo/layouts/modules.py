"""What every layout's module does; the module is found by the layout's name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from trtforge.recipe.load import LoadedRecipe
from trtforge.recipe.schema import Recipe
from trtforge.targets.layouts import Layout


class LayoutModule(Protocol):
    """What a layout's module does."""

    def in_bundle(self, recipe: Recipe, engine: Mapping[str, Any], engine_dir: Path, out: Path) -> dict[str, Any]:
        """Write the repository of a bundle, whose places are fixed; returns what the artifact says of it.

        Args:
            engine: the summary of the artifact that the build stage wrote.
            engine_dir: its folder.
        """

    def by_hand(
        self, loaded: LoadedRecipe, source: Path, out: Path, *, name: str, tokenizer: Path | None
    ) -> dict[str, Any]:
        """Write a repository that refers to ``source`` where it lies.

        Args:
            source: the engine or checkpoint.
            name: the model's name, where the layout leaves it open.
            tokenizer: folder of ``tokenizer.json``, where it is not beside the engine.
        """

    def code_files(self) -> list[Path]:
        """The files of code that a repository carries."""


def layout_module(layout: Layout) -> LayoutModule:
    """The module that writes a layout."""
    return cast(LayoutModule, import_module(f"triton_repo.layouts.{layout.name}"))
