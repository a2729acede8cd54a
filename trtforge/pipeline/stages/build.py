"""build: the engine of the recipe's target, made by the target's ``stage`` module from the graph or the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import copy_estimate, draft_directory, plain
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult

if TYPE_CHECKING:
    from builder.targets.trtllm.settings import LlmSettings


class BuildStage(Stage):
    """Keyed by the kind of processor too: kernels are planned for it."""

    name = "build"
    needs = ("quantize", "graph")
    code_version = "4"
    tools = ("torch",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from builder.targets import target_module
        from builder.targets.request import Asked

        section = {"name": recipe.name, "build": plain(recipe.build)}
        if recipe.target.from_graph and recipe.speculation.method != "none":
            section["speculation"] = plain(recipe.speculation)
        asked = Asked(recipe, recipe_dir, draft_directory(recipe, recipe_dir))
        return section | target_module(recipe.build.target, "stage").section(asked)

    def host_facts(self) -> dict[str, Any]:
        from trtforge.machine.processor import processor

        return {"cpu_capability": processor().capability}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs[_source(recipe)])

    def run(self, context: StageContext) -> StageResult:
        from builder.speculation import engine_record
        from builder.targets import target_module
        from builder.targets.request import BuildRequest

        recipe, source = context.recipe, context.inputs[_source(context.recipe)].path
        request = BuildRequest(
            recipe,
            context.recipe_dir,
            draft_directory(recipe, context.recipe_dir),
            source=source,
            out=context.out,
            scratch=context.scratch,
            speculation=engine_record(recipe.speculation, source) if recipe.target.from_graph else None,
            settings_of=_llm_settings,
            progress=context.progress,
        )
        return target_module(recipe.build.target, "stage").build(request)


def _source(recipe: Recipe) -> str:
    """The stage whose artifact the engine is made from."""
    return "graph" if recipe.target.from_graph else "quantize"


def _llm_settings(recipe: Recipe, checkpoint: str, draft: str | None, taps: tuple[int, ...] | None) -> LlmSettings:
    """The layout's own arguments: the repository and the artifact must not differ."""
    from builder.targets.trtllm.settings import LlmSettings
    from triton_repo.layouts.llmapi_settings import llm_arguments, serve_options

    options = serve_options(recipe, checkpoint, draft=draft, taps=taps)
    arguments = llm_arguments(recipe, checkpoint, draft=draft, taps=taps)
    return LlmSettings(arguments, options.command, options.file_name, options.file_text)
