"""What several stages share: JSON files, identities of corpora, sizes, host facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import json_safe
from trtforge.ground.json_file import read_json_file
from trtforge.ground.paths import real_path
from trtforge.machine.processor import processor
from trtforge.native.host_library import host_library_hash
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact

#: the part of a stage's estimate for what comes beside the copied files
_MARGIN = 1.05


def plain(section: BaseModel, *, exclude: set[str] | None = None) -> dict[str, Any]:
    """A recipe section as JSON-able data."""
    return section.model_dump(mode="json", exclude=exclude)


def write_json(path: Path, value: Any) -> None:
    """Indented JSON with sorted keys: the same value gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json_safe(value), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """The JSON value in ``path``, a file of an artifact.

    Raises:
        ForgeError: TF-STO-015 it is no regular file, or no JSON.
    """
    try:
        return read_json_file(path)
    except (OSError, ValueError) as error:
        raise bad_record(path, str(error)) from error


def bad_record(path: Path, reason: str) -> ForgeError:
    """The refusal of a record in an artifact that no stage of this version writes like that."""
    return ForgeError(
        "TF-STO-015",
        f"{path.name} is no record that this version reads: {reason}",
        asked=str(path),
        why="Stages read what others have published; this was written by another version, or by hand.",
        remedies=[f"make it anew: trtforge run RECIPE --force {path.parent.parent.name}"],
    )


def corpus_identity(spec: str, recipe_dir: Path, role: str) -> dict[str, Any]:
    """What identifies a corpus slice in a key: its hash, or for a data set its name (not fetched for a key).

    Raises:
        ForgeError: what the corpus module refuses.
    """
    if spec.startswith("hf:"):
        return {"name": spec}
    from quantize.corpora import load_corpus

    return {"name": spec, "sha256": load_corpus(spec, recipe_dir, role).sha256}  # type: ignore[arg-type]


def size_of(artifact: Artifact) -> int:
    """Bytes of an artifact's files."""
    return sum(int(entry["size"]) for entry in artifact.manifest["files"])


def weight_bytes(artifact: Artifact) -> int:
    return sum(int(f["size"]) for f in artifact.manifest["files"] if f["path"].endswith(".safetensors"))


def copy_estimate(*artifacts: Artifact) -> int:
    """Bytes that a stage writes when it copies its inputs."""
    return int(sum(size_of(artifact) for artifact in artifacts) * _MARGIN)


def execution_facts() -> dict[str, Any]:
    """What figures of a running engine depend on: the processor's instruction sets and the plugins' host library."""
    return {"isa": list(processor().isa), "plugin_library_sha256": host_library_hash()}


def rounded(value: Any, digits: int = 8) -> Any:
    """Floats in nested data to ``digits`` significant digits, so that JSON stays readable."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    return value


def draft_directory(recipe: Recipe, recipe_dir: Path) -> Path | None:
    """The directory that ``speculation.draft`` names; None when it names none that is here."""
    if recipe.speculation.draft is None:
        return None
    path = real_path(recipe_dir / recipe.speculation.draft)
    return path if path.is_dir() else None


def required_draft(recipe: Recipe, recipe_dir: Path) -> Path:
    """:func:`draft_directory` of a recipe that drafts with weights.

    Raises:
        ForgeError: TF-BLD-122 there is no such directory.
    """
    found = draft_directory(recipe, recipe_dir)
    if found is not None:
        return found
    named = recipe.speculation.draft
    raise ForgeError(
        "TF-BLD-122",
        f"There is no draft {named} beside the recipe" if named else "The recipe names no draft",
        asked=f"speculation.method: {recipe.speculation.method}, speculation.draft: {named}",
        why="The engine carries what drafts; it is taken from a directory, relative to the recipe's folder.",
        remedies=["speculation.draft: PATH of the head or of the draft model", "speculation.method: ngram"],
    )
