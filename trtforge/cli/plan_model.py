"""Where ``trtforge plan`` finds a recipe's model, its draft and its split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from builder.planner.facts import KnownModel
    from builder.planner.types import ParallelPlan
    from trtforge.recipe.load import LoadedRecipe


def written_split(loaded: LoadedRecipe) -> ParallelPlan | None:
    """The recipe's split when it writes one; None leaves the choice to the goal."""
    from builder.planner.types import ParallelPlan

    if "parallel" not in loaded.written.get("build", {}):
        return None
    parallel = loaded.recipe.build.parallel
    return ParallelPlan(parallel.tp, parallel.pp, parallel.ep)


def known_model(loaded: LoadedRecipe, source: str, config: Path | None) -> KnownModel:
    """The model's sizes: ``--config``, the folder that the source names, or intake's look at any other source."""
    from builder.planner.facts import model_from_config, model_from_folder, model_from_record
    from quantize.intake import inspect_source, not_here
    from quantize.intake.source import parse_source

    if config is not None:
        return model_from_config(config, loaded.recipe.name)
    parsed = parse_source(source, loaded.directory)
    if parsed.kind == "directory" and parsed.path is not None:
        return model_from_folder(parsed.path, loaded.recipe.name)
    if parsed.kind == "hf":
        from quantize.intake.hub import cached_snapshot

        folder = cached_snapshot(parsed)
        if folder is not None:
            return model_from_folder(folder, loaded.recipe.name)
    record = inspect_source(source, loaded.directory, allow_remote_code=loaded.recipe.model.allow_remote_code)
    if record is None:
        raise ForgeError(
            "TF-PLN-009",
            f"the sizes of {source} are not on this machine",
            asked=source,
            why=not_here(source, loaded.directory) or "",
            remedies=["--config FILE with the model's config.json", "trtforge run RECIPE --until intake fetches it"],
        )
    return model_from_record(record.model, loaded.recipe.name)


def draft_model(loaded: LoadedRecipe) -> KnownModel | None:
    """The draft's sizes when they are here; the plan says so when they are not."""

    source = loaded.recipe.speculation.draft
    if source is None:
        return None
    try:
        return _eagle3(loaded, source) or known_model(loaded, source, None)
    except ForgeError as error:
        if error.code == "TF-PLN-009":
            return None
        raise


def _eagle3(loaded: LoadedRecipe, source: str) -> KnownModel | None:
    """An EAGLE-3 head in a folder, or in the Hub's cache; None: the method is another one, or the head is not here."""
    from builder.planner.drafts import eagle3_from_folder
    from quantize.intake.hub import cached_snapshot
    from quantize.intake.source import parse_source

    if loaded.recipe.speculation.method != "eagle3":
        return None
    parsed = parse_source(source, loaded.directory)
    folder = parsed.path if parsed.kind == "directory" else cached_snapshot(parsed) if parsed.kind == "hf" else None
    return eagle3_from_folder(folder) if folder is not None and folder.is_dir() else None
