"""evaluate: the quantized checkpoint on the baseline's tokens and items, with paired intervals and the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import write_json
from trtforge.pipeline.stages.scoring import TOOLS, measure_checkpoint, measure_layers, scoring_section
from trtforge.pipeline.stages.verdicts import gates_section, judge
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

INCREASE_FILE = "increase.json"


class EvaluateStage(Stage):
    """Gates: the perplexity's relative increase, divergence from the baseline, sane answers, tasks.

    They are judged from the samples: another gate takes every sample over from the artifact before.
    """

    name = "evaluate"
    needs = ("intake", "baseline", "quantize")
    code_version = "2"
    tools = TOOLS
    reuses_samples = True

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {**scoring_section(recipe, recipe_dir), "layers": recipe.evals.layers, "gates": gates_section(recipe)}

    def run(self, context: StageContext) -> StageResult:
        quantized, baseline = context.inputs["quantize"], context.inputs["baseline"]
        summary = measure_checkpoint(context, "quantize", against_baseline=True)
        judged, gates = judge(context.recipe, baseline.path, context.out)
        figures = {
            **judged,
            **({"layers": measure_layers(context)} if context.recipe.evals.layers else {}),
            "baseline": baseline.summary["perplexity"],
            "candidate": summary["perplexity"],
            "emulated": quantized.summary.get("emulated", []),
        }
        write_json(context.out / INCREASE_FILE, figures)
        return StageResult(summary={**summary, **figures}, gates=gates)
