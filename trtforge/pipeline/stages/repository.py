"""repository: the Triton model repository of the recipe's layout, validated against the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import plain
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

#: folder below the artifact; the engine is found from a model's folder as ``../../engine``
REPOSITORY_DIR = "repository"


class RepositoryStage(Stage):
    """Emits below ``repository/``, so that the artifact's own manifest stays out of what Triton reads."""

    name = "repository"
    needs = ("build",)
    code_version = "4"
    tools = ("tritonclient",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from triton_repo.layouts.modules import layout_module

        section = {
            "name": recipe.name,
            "layout": recipe.triton.layout,
            "version": recipe.triton.version,
        }
        if recipe.layout.own_runtime:
            read: dict[str, Any] = {
                "decoupled": recipe.triton.decoupled,
                "client_names": recipe.triton.client_names,
                # as the repository has it: a new key at its default leaves what is in the store
                **({"serving": serving} if (serving := recipe.serving.model_dump(exclude_defaults=True)) else {}),
            }
        else:
            read = {name: plain(getattr(recipe, name)) for name in ("triton", "build", "speculation")}
        return {**section, **read, "model_code": _code_hash(layout_module(recipe.layout).code_files())}

    def run(self, context: StageContext) -> StageResult:
        from triton_repo.layouts.modules import layout_module
        from triton_repo.validate import require_valid

        recipe, out = context.recipe, context.out / REPOSITORY_DIR
        engine_dir = context.inputs["build"].path
        context.progress.start("writing the model repository")
        summary = layout_module(recipe.layout).in_bundle(recipe, context.inputs["build"].summary, engine_dir, out)
        require_valid(out, engine_dir if recipe.layout.own_runtime else None)
        return StageResult(summary=summary)


def _code_hash(files: list[Path]) -> str:
    """One hash over the files that a repository carries."""
    from trtforge.ground.hashing import hash_file, hash_json

    return hash_json([hash_file(path) for path in files]) if len(files) > 1 else hash_file(files[0])
