"""build: the engine of the recipe's target, planned for this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Artifact, StageBase, StageContext, StageResult
from trtforge.pipeline.stages.common import copy_estimate, plain
from trtforge.recipe.schema import Recipe


class BuildStage(StageBase):
    """Keyed by the kind of processor too: kernels are planned for it."""

    name = "build"
    needs = ("graph",)
    code_version = "1"
    tools = ("torch",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {"name": recipe.name, "build": plain(recipe.build)}

    def host_facts(self) -> dict[str, Any]:
        from builder.machine import cpu_capability

        return {"cpu_capability": cpu_capability()}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs["graph"])

    def run(self, context: StageContext) -> StageResult:
        from builder.targets import build_engine

        engine = build_engine(
            context.inputs["graph"].path,
            context.out,
            name=context.recipe.name,
            build=context.recipe.build,
            progress=context.progress,
        )
        leave_out = ("linears", "kernel_choices", "sha256")
        summary = {key: value for key, value in engine.items() if key not in leave_out}
        kernels: dict[str, int] = {}
        for linear in engine["linears"]:
            name = f"{linear['stored']} as {linear['executed']}, {'native' if linear['native'] else 'emulated'}"
            kernels[name] = kernels.get(name, 0) + 1
        return StageResult(summary={**summary, "linears": kernels})
