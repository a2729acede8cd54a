"""Recipe files to validated recipes: inheritance, overrides, and refusals that say what would work.

Policy: everything that is wrong with the values is reported at once, with file and line. Paths are
relative to the recipe that is run; ``extends`` and ``file:`` corpora stay inside its folder, so that a
recipe can be moved, reviewed and run in CI as a unit, and cannot read the rest of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import resolved_path
from trtforge.ground.units import WRITTEN
from trtforge.recipe.faults import recipe_refused
from trtforge.recipe.merge import apply_overrides, deep_merge
from trtforge.recipe.schema import Recipe
from trtforge.recipe.shipped import recipe_file
from trtforge.recipe.sources import names_file, path_beside
from trtforge.recipe.text import KeyPath, read_document

MAX_BASES = 16


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe ready to run.

    ``resolved`` is the whole recipe with every default, JSON-able, and loads back to the same recipe;
    ``written`` holds only what the files and overrides said; ``where`` maps a key path to ``file:line``.
    """

    recipe: Recipe
    path: Path | None
    directory: Path
    resolved: dict[str, Any]
    written: dict[str, Any] = field(default_factory=dict)
    where: Mapping[KeyPath, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    def place(self, key: str) -> str | None:
        """``file:line`` of a dotted key, or None when it is a default."""
        return self.where.get(tuple(key.split(".")))


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load the recipe at ``path``, or the one of that name that ships, with ``key.key=value`` overrides.

    Raises TF-RCP-001 … 013.
    """
    path = recipe_file(Path(path))
    directory = resolved_path(path.parent, code="TF-RCP-001", asked=str(path))
    data, where, files = _with_bases(path, directory, ())
    return _validated(data, where, files, path=path, directory=directory, overrides=overrides)


def recipe_from_mapping(
    data: Mapping[str, Any], directory: str | Path = ".", overrides: Sequence[str] = (), label: str = "the command line"
) -> LoadedRecipe:
    """A recipe built in memory (one-stage commands, tests); paths are relative to ``directory``."""
    return _validated(
        dict(data), {(): label}, (), path=None, directory=Path(directory).resolve(), overrides=overrides, label=label
    )


def _require_beside(key: str, spec: str, directory: Path) -> None:
    """Raise TF-RCP-013 unless what ``file:PATH`` names is relative to the recipe, and in its folder."""
    root = directory.resolve()
    try:
        path_beside(spec, root)
        fault = "it is an absolute path" if Path(spec.partition(":")[2]).is_absolute() else None
    except ValueError as error:
        fault = str(error)
    if fault:
        raise ForgeError(
            "TF-RCP-013",
            f"{key}: {spec!r} cannot be read: {fault}",
            asked=f"{key}: {spec}",
            numbers={"folder": str(root)},
            why="A recipe and what it reads form one unit; a path out of its folder could read anything here.",
            remedies=[f"copy the file below {root} and name it relative to the recipe", "move the recipe up"],
        )


def _with_bases(
    path: Path, root: Path, chain: tuple[Path, ...]
) -> tuple[dict[str, Any], dict[KeyPath, str], tuple[Path, ...]]:
    document = read_document(path)
    data, where = dict(document.data), dict(document.where)
    here = resolved_path(path, code="TF-RCP-001", asked=str(path))
    base_name = data.pop("extends", None)
    if base_name is None:
        return data, where, (here,)
    at = where.get(("extends",), str(path))
    if not isinstance(base_name, str) or not base_name.strip():
        raise ForgeError(
            "TF-RCP-007",
            f"{at}: extends must name one recipe file",
            asked=f"extends: {base_name!r}",
            why="A recipe inherits from one base, which may have a base of its own.",
            remedies=["extends: base.yaml"],
        )
    # relative to the file that says it, but never out of the folder of the recipe that is run
    beside = path.parent / base_name
    leads_to = resolved_path(beside, code="TF-RCP-008", asked=f"extends: {base_name}")
    base_path = recipe_file(Path(base_name), path.parent)
    if base_path != beside:  # a recipe that ships; its own bases lie beside it
        leads_to = resolved_path(base_path, code="TF-RCP-008", asked=f"extends: {base_name}")
        root = leads_to.parent
    if Path(base_name).is_absolute() or not leads_to.is_relative_to(root):
        raise ForgeError(
            "TF-RCP-008",
            f"{at}: extends: {base_name} leaves the recipe's folder",
            asked=f"extends: {base_name}",
            numbers={"folder": str(root), "resolves_to": str(leads_to)},
            why="A recipe and its bases form one unit that can be moved and reviewed together.",
            remedies=[
                f"put the base below {root} and name it relative to {path.name}",
                "move the recipe to the base's folder",
            ],
        )
    names = [item.name for item in (*chain, here)]
    if leads_to in (*chain, here) or len(chain) >= MAX_BASES:
        raise ForgeError(
            "TF-RCP-009",
            f"{at}: the bases form a circle or a chain that is too long: {' -> '.join([*names, base_path.name])}",
            asked=f"extends: {base_name}",
            numbers={"chain": [*names, base_path.name], "limit": MAX_BASES},
            why="A recipe cannot be its own base.",
            remedies=[f"remove extends from one of {', '.join(names)}"],
        )
    base, base_where, files = _with_bases(base_path, root, (*chain, here))
    if base_path != beside:
        _anchor_draft(base, root)
    return deep_merge(base, data), {**base_where, **where}, (*files, here)


def _anchor_draft(data: dict[str, Any], folder: Path) -> None:
    """The draft of a recipe that ships lies beside it, not beside the recipe that builds on it."""
    section = data.get("speculation")
    if isinstance(section, dict) and isinstance(section.get("draft"), str) and (folder / section["draft"]).is_dir():
        data["speculation"] = {**section, "draft": str(folder / section["draft"])}


def _validated(
    data: dict[str, Any],
    where: dict[KeyPath, str],
    files: tuple[Path, ...],
    *,
    path: Path | None,
    directory: Path,
    overrides: Sequence[str],
    label: str | None = None,
) -> LoadedRecipe:
    merged = apply_overrides(data, overrides)
    for text in overrides:
        keys = tuple(part.strip() for part in text.partition("=")[0].split("."))
        where = {known: place for known, place in where.items() if known[: len(keys)] != keys}
        where[keys] = "--set"
    try:
        recipe = Recipe.model_validate(merged, context={WRITTEN: True})
    except ValidationError as error:
        raise recipe_refused(error, where, label or str(path)) from None
    for key, spec in file_specs(recipe).items():
        _require_beside(key, spec, directory)
    resolved = recipe.model_dump(mode="json")
    return LoadedRecipe(recipe, path, directory, resolved, merged, where, files)


def file_specs(recipe: Recipe) -> dict[str, str]:
    """The ``file:`` texts that the recipe reads, by dotted key."""
    specs = {
        "quantize.calibration.corpus": recipe.quantize.calibration.corpus,
        "evals.perplexity.corpus": recipe.evals.perplexity.corpus,
        "bench.prompts": recipe.bench.prompts,
        **{f"evals.custom[{one.name}].path": one.path for one in recipe.evals.custom},
        **{f"evals.tasks[{position}]": task for position, task in enumerate(recipe.evals.tasks)},
    }
    return {key: spec for key, spec in specs.items() if names_file(spec)}
