"""baseline: what the unquantized checkpoint scores and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.scoring import TOOLS, measure_checkpoint, scoring_section
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult


class BaselineStage(Stage):
    """Measures the checkpoint of intake; no gate: it is what others are held against."""

    name = "baseline"
    needs = ("intake",)
    code_version = "2"
    tools = TOOLS
    reuses_samples = True

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return scoring_section(recipe, recipe_dir)

    def run(self, context: StageContext) -> StageResult:
        return StageResult(summary=measure_checkpoint(context, "intake", against_baseline=False))
