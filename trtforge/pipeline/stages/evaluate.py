"""evaluate: the quantized checkpoint on the baseline's tokens, with the paired interval and the gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import StageBase, StageContext
from trtforge.pipeline.stages.common import plain, rounded, write_json
from trtforge.pipeline.stages.scoring import (
    TOOLS,
    load_answers,
    load_scores,
    measure_checkpoint,
    scoring_section,
)
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult, StageResult

INCREASE_FILE = "increase.json"


class EvaluateStage(StageBase):
    """Gates: the upper bound of the perplexity's relative increase, and sane answers."""

    name = "evaluate"
    needs = ("baseline", "quantize")
    code_version = "1"
    tools = TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        gate, sane = recipe.evals.perplexity.gate, recipe.evals.generation.gate
        return {
            **scoring_section(recipe, recipe_dir),
            "gate": plain(gate) if gate else None,
            "generation_gate": plain(sane) if sane else None,
        }

    def run(self, context: StageContext) -> StageResult:
        from evals.gates import at_most
        from evals.generation import compare, sanity_gate
        from evals.statistics import paired_increase

        quantized = context.inputs["quantize"]
        summary = measure_checkpoint(context, quantized.path)
        baseline = context.inputs["baseline"]
        increase = paired_increase(load_scores(baseline.path), load_scores(context.out))
        asked, sane = context.recipe.evals.perplexity.gate, context.recipe.evals.generation.gate
        answers = compare(load_answers(baseline.path), load_answers(context.out))
        gates: list[GateResult] = []
        if asked is not None:
            gates.append(at_most("perplexity_increase", increase, asked.max_increase))
        if sane is not None:
            gates.append(sanity_gate(answers, sane.min_sane))
        figures = {
            "increase": rounded(increase.to_json()),
            "baseline": baseline.summary["perplexity"],
            "candidate": summary["perplexity"],
            "generation": rounded(answers.to_json()),
            "emulated": quantized.summary.get("emulated", []),
        }
        write_json(context.out / INCREASE_FILE, figures)
        return StageResult(summary={**summary, **figures}, gates=gates)
