"""What several stages share: JSON files, identities of corpora, sizes, host facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trtforge.pipeline.stage import Artifact
from trtforge.store.hashing import json_safe
from trtforge.store.machine import host_isa, host_library_hash

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
    """The JSON value in ``path``."""
    return json.loads(path.read_text(encoding="utf-8"))


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


def copy_estimate(*artifacts: Artifact) -> int:
    """Bytes that a stage writes when it copies its inputs."""
    return int(sum(size_of(artifact) for artifact in artifacts) * _MARGIN)


def execution_facts() -> dict[str, Any]:
    """What figures of a running engine depend on: the processor's instruction sets and the plugins' host library."""
    return {"isa": list(host_isa()), "plugin_library_sha256": host_library_hash()}


def rounded(value: Any, digits: int = 8) -> Any:
    """Floats in nested data to ``digits`` significant digits, so that JSON stays readable."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    return value
