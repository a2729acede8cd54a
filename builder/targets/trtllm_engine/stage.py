"""The build stage of the ``trtllm-engine`` target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.targets.request import Asked, BuildRequest
from builder.targets.trtllm import stage as shared
from builder.targets.trtllm.runner import why_not_here
from builder.targets.trtllm_engine import target
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.paths import real_path
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult, StageResult

#: files that two builds of the same inputs need not agree on
MEASURED = ("build.log", "model.cache", "trtllm/*")


def section(asked: Asked) -> dict[str, Any]:
    """Stack, speculation and draft, whether the engine is compiled here, and the kernel timings that it is given."""
    found, version = shared.section(asked)
    cache = timing_cache(asked.recipe, asked.recipe_dir)
    return {
        **found,
        "not_compiled": why_not_here(version),
        "timing_cache": hash_file(cache) if cache else None,
    }


def timing_cache(recipe: Recipe, recipe_dir: Path) -> Path | None:
    """The file that ``build.trtllm.timing_cache`` names, below the recipe's folder.

    Raises:
        ForgeError: ``TF-BLD-045`` it is missing or lies elsewhere.
    """
    named = recipe.build.trtllm.timing_cache
    if named is None:
        return None
    path = real_path(recipe_dir / named)
    if path.is_relative_to(real_path(recipe_dir)) and path.is_file():
        return path
    raise ForgeError(
        "TF-BLD-045",
        f"There is no timing cache {named} beside the recipe",
        asked=f"build.trtllm.timing_cache: {named}",
        why="It must be a file below the recipe's folder; a build writes model.cache, which a later one can read.",
        remedies=["remove build.trtllm.timing_cache for the first build", "copy model.cache of a build to that place"],
    )


def build(request: BuildRequest) -> StageResult:
    """TensorRT-LLM's checkpoint and, where it can be compiled here, the engine."""
    recipe = request.recipe
    engine = target.build_engine(
        request.source,
        request.out,
        name=recipe.name,
        build=recipe.build,
        speculation=recipe.speculation,
        stack=recipe.stack,
        timing_cache=timing_cache(recipe, request.recipe_dir),
        draft=request.draft,
        scratch=request.scratch,
        progress=request.progress,
    )
    gate = _as_evaluated(engine["conversion"]["requantized"])
    return StageResult(summary=engine, measured=MEASURED, gates=[gate])


def _as_evaluated(again: Mapping[str, Any]) -> GateResult:
    """The converted checkpoint holds the weights and scales of the one that was evaluated."""
    changed = again["weights"] + again["kv_layers"]
    detail = "the converted weights and KV scales are those that were evaluated"
    if changed:
        detail = (
            f"the conversion rounds {again['weights']:,} weights of {again['linears']} linears again, by up to "
            f"{again['largest_relative_change']:.2%} each, and changes the KV scales of {again['kv_layers']} layers; "
            "what was evaluated is not what the engine holds"
        )
    return GateResult("deployed_weights", changed == 0, float(changed), 0.0, detail)
