"""graph: ONNX written from configuration and headers, beside the weights that it points into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Artifact, StageBase, StageContext, StageResult
from trtforge.pipeline.stages.common import copy_estimate, read_json
from trtforge.recipe.schema import Recipe

#: KV-cache mode of the recipe → element type of the pool; None: the model's type
KV_POOL_FORMATS = {"none": None, "fp8": "fp8", "fp8_cast": "fp8"}


class GraphStage(StageBase):
    """The graph depends on few keys of the recipe: most changes of ``build`` leave it cached."""

    name = "graph"
    needs = ("quantize",)
    code_version = "2"
    tools = ("onnx",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        if recipe.build.target == "tensorrt-rtx":
            # no plugins, and linear caches of the model's type
            return {
                "dtype": recipe.model.dtype,
                "kv_cache_format": recipe.model.dtype,
                "block_size": recipe.build.kv_cache.block_size,
                "mode": "native",
            }
        return {
            "dtype": recipe.model.dtype,
            "kv_cache_format": KV_POOL_FORMATS.get(recipe.quantize.kv_cache, recipe.quantize.kv_cache),
            "block_size": recipe.build.kv_cache.block_size,
            "mode": "paged",
        }

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs["quantize"])

    def run(self, context: StageContext) -> StageResult:
        from builder.graphs import build_graph
        from builder.graphs.info import INFO_FILE

        build_graph(
            context.inputs["quantize"].path,
            context.out,
            dtype=context.section["dtype"],
            kv_cache_format=context.section["kv_cache_format"],
            block_size=context.section["block_size"],
            mode=context.section["mode"],
            progress=context.progress,
        )
        info = read_json(context.out / INFO_FILE)
        summary = {key: value for key, value in info.items() if key not in ("linears", "accounted")}
        return StageResult(summary={**summary, "linears": len(info["linears"])})
