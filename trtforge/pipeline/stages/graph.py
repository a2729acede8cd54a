"""graph: ONNX written from configuration and headers, beside the weights that it points into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.formats.table import pool_format
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import copy_estimate, read_json, required_draft
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult


class GraphStage(Stage):
    """The graph depends on few keys of the recipe: most changes of ``build`` leave it cached."""

    name = "graph"
    needs = ("quantize",)
    code_version = "2"
    tools = ("onnx",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        if recipe.target.graph_mode == "native":
            # no plugins, and linear caches of the model's type
            return {
                "dtype": recipe.model.dtype,
                "kv_cache_format": recipe.model.dtype,
                "block_size": recipe.build.kv_cache.block_size,
                "mode": recipe.target.graph_mode,
            }
        return {
            "dtype": recipe.model.dtype,
            "kv_cache_format": pool_format(recipe.quantize.kv_cache),
            "block_size": recipe.build.kv_cache.block_size,
            "mode": "paged",
            **_draft_section(recipe, recipe_dir),
        }

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs["quantize"])

    def run(self, context: StageContext) -> StageResult:
        from builder.graphs.build import build_graph
        from builder.graphs.drafts import build_draft, taps_of
        from builder.graphs.info import INFO_FILE

        speculation, checkpoint = context.recipe.speculation, context.inputs["quantize"].path
        draft = required_draft(context.recipe, context.recipe_dir) if "draft" in context.section else None
        build_graph(
            checkpoint,
            context.out,
            dtype=context.section["dtype"],
            kv_cache_format=context.section["kv_cache_format"],
            block_size=context.section["block_size"],
            mode=context.section["mode"],
            hidden_states=taps_of(speculation, draft, checkpoint),
            tree_mask=bool(context.section.get("tree")),
            progress=context.progress,
        )
        if draft is not None:
            build_draft(
                speculation,
                draft,
                checkpoint,
                context.out,
                dtype=context.section["dtype"],
                block_size=context.section["block_size"],
                progress=context.progress,
            )
        info = read_json(context.out / INFO_FILE)
        summary = {key: value for key, value in info.items() if key not in ("linears", "accounted")}
        return StageResult(summary={**summary, "linears": len(info["linears"])})


def _draft_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What the graphs of a recipe that speculates depend on beside; nothing for one that does not."""
    from builder.draft_files import draft_files, needs_draft

    speculation = recipe.speculation
    if not needs_draft(speculation):
        return {}
    from trtforge.ground.hashing import hash_file

    files = draft_files(required_draft(recipe, recipe_dir))
    return {
        "method": speculation.method,
        "draft": {path.name: hash_file(path) for path in files},
        "tree": speculation.choices is not None or speculation.dynamic_tree is not None,
    }
