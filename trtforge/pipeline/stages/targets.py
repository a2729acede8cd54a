"""What a target leaves out of the pipeline, and why: a stage that cannot run says so, and passes nothing.

Policy: the engines of TensorRT-LLM run on a GPU under NVIDIA's own runtime, and RTX engines on an RTX GPU; this
pipeline has no runner for either. Their recipes go through the same stages; those that need a running engine write
``not_run.json`` with the reason and the gates that nobody has looked at. Report and bundle name these gates; none
counts as passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import write_json
from trtforge.pipeline.stages.verdicts import engine_task_gates
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult
from trtforge.targets import NotRun
from trtforge.targets.gates import AGREEMENT, SPECULATION

NOT_RUN_FILE = "not_run.json"


def left_out(recipe: Recipe, stage: str) -> NotRun | None:
    """Why ``stage`` does not run for the recipe's target, with the gates that the recipe asks for; None: it runs."""
    found = recipe.target.left_out.get(stage)
    if found is None:
        return None
    unasked: tuple[str, ...] = () if recipe.evals.engine_parity.gate is not None else AGREEMENT
    unasked += () if recipe.evals.generation.gate is not None else ("engine_sanity",)
    speculation = recipe.evals.speculation.gate
    unasked += tuple(gate for gate, key in SPECULATION.items() if getattr(speculation, key, None) is None)
    if stage == "parity":
        found = NotRun(found.reason, (*found.gates, *engine_task_gates(recipe)))
    if unasked:
        found = NotRun(found.reason, tuple(gate for gate in found.gates if gate not in unasked))
    if stage == "bench" and recipe.bench.slo is None:
        return NotRun(found.reason, tuple(gate for gate in found.gates if gate != "slo"))
    return found


def not_run(artifact: Artifact) -> Mapping[str, Any] | None:
    """``{"reason", "gates"}`` of a stage that did not run; None of one that did."""
    return artifact.summary.get("not_run")


class PerTarget(Stage):
    """A stage that is left out for some targets: it then writes the reason instead of running."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.name, self.needs = stage.name, stage.needs
        self.code_version, self.tools = stage.code_version, stage.tools
        self.reuses_samples = stage.reuses_samples

    def asked_for(self, recipe: Recipe) -> bool:
        return self._stage.asked_for(recipe)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        reason = left_out(recipe, self.name)
        return {"not_run": reason.to_json()} if reason else self._stage.section(recipe, recipe_dir)

    def host_facts(self) -> dict[str, Any]:
        return self._stage.host_facts()

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return 0 if left_out(recipe, self.name) else self._stage.disk_estimate(recipe, inputs)

    def run(self, context: StageContext) -> StageResult:
        reason = left_out(context.recipe, self.name)
        if reason is None:
            return self._stage.run(context)
        context.progress.note(f"not run: {reason.reason}")
        write_json(context.out / NOT_RUN_FILE, reason.to_json())
        return StageResult(summary={"not_run": reason.to_json()})
