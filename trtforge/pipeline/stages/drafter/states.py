"""draft-states: the unquantized target's hidden states over its text, computed once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.drafter.options import DraftOptions
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult

#: three taps and the last state, 16 bits each
_BYTES = 4 * 2
#: tokens of prompts beside those of the answers
_WITH_PROMPTS = 1.6


class DraftStatesStage(Stage):
    """States of the checkpoint of intake: a head is trained for a model, not for one of its quantizations."""

    name = "draft-states"
    needs = ("intake", "draft-text")
    code_version = "1"
    tools = ("torch", "transformers", "safetensors")

    def __init__(self, options: DraftOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        from quantize.speculative.shape import plan_head

        width = plan_head(inputs["intake"].path, self._options.draft_vocab).target_hidden_size
        return int(inputs["draft-text"].summary["tokens"] * _WITH_PROMPTS * width * _BYTES)

    def run(self, context: StageContext) -> StageResult:
        from quantize.speculative.shape import plan_head
        from quantize.speculative.states import write_states

        checkpoint = context.inputs["intake"].path
        head = plan_head(checkpoint, self._options.draft_vocab)
        assert head.taps is not None
        context.scratch.mkdir(parents=True, exist_ok=True)
        write_states(context.inputs["draft-text"].path, checkpoint, head.taps, context.scratch, context.progress)
        for path in sorted(context.scratch.glob("part-*.safetensors")):
            shutil.move(path, context.out / path.name)
        return StageResult(summary={"taps": list(head.taps), "hidden_size": head.target_hidden_size})
