"""intake: the source becomes one checkpoint directory of one form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult


class IntakeStage(Stage):
    """Keyed by what identifies the source's content, not by where it lies."""

    name = "intake"
    code_version = "2"

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from quantize.intake import fingerprint_source

        model = recipe.model
        return {
            "source": fingerprint_source(model.source, recipe_dir, sha256=model.sha256),
            "sha256": model.sha256,
            "dtype": model.dtype,
            "allow_remote_code": model.allow_remote_code,
        }

    def run(self, context: StageContext) -> StageResult:
        from quantize.intake import fetch_checkpoint

        model = context.recipe.model
        info = fetch_checkpoint(
            model.source,
            context.out,
            base_dir=context.recipe_dir,
            scratch=context.scratch,
            dtype=model.dtype,
            sha256=model.sha256,
            allow_remote_code=model.allow_remote_code,
            progress=context.progress,
        )
        for note in info.notes:
            context.progress.note(note)
        return StageResult(summary=info.model_dump(mode="json", exclude={"files"}))
