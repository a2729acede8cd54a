"""repository: the Triton model repository of the recipe's layout, validated against the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.errors import ForgeError
from trtforge.pipeline.stage import StageBase, StageContext, StageResult
from trtforge.recipe.schema import Recipe

#: folder below the artifact; the engine is found from a model's folder as ``../../engine``
REPOSITORY_DIR = "repository"


class RepositoryStage(StageBase):
    """Emits below ``repository/``, so that the artifact's own manifest stays out of what Triton reads."""

    name = "repository"
    needs = ("build",)
    code_version = "2"
    tools = ("tritonclient",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from triton_repo.layouts.native import MODEL_CODE
        from trtforge.store.hashing import hash_file

        return {
            "name": recipe.name,
            "layout": recipe.triton.layout,
            "version": recipe.triton.version,
            "model_code": hash_file(MODEL_CODE),
        }

    def run(self, context: StageContext) -> StageResult:
        from triton_repo.layouts import native
        from triton_repo.validate import require_valid

        layout = context.recipe.triton.layout
        if layout != "native":
            raise ForgeError(
                "TF-TRI-001",
                f"layout {layout} is not built by this version",
                asked=f"triton.layout: {layout}",
                why=f"{layout} serves engines of TensorRT-LLM, which this version does not build",
                remedies=["triton.layout: native"],
            )
        engine = context.inputs["build"].path
        context.progress.start("writing the model repository")
        summary = native.emit(engine, context.out / REPOSITORY_DIR, name=context.recipe.name)
        require_valid(context.out / REPOSITORY_DIR, engine)
        return StageResult(summary=summary)
