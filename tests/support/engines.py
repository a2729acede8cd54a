"""Engines of any target that is built from a graph, by the recipe's section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.targets import target_module
from trtforge.recipe.schema import Build


def build_engine(graph_dir: Path, out: Path, *, name: str, build: Build, **options: Any) -> dict[str, Any]:
    """Write the engine that ``build.target`` names into ``out``; returns the contents of engine.json."""
    return target_module(build.target).build_engine(graph_dir, out, name=name, build=build, **options)
