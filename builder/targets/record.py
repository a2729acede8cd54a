"""engine.json: reading and writing the record of an engine, of whatever target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.versions import is_version
from trtforge.targets import TARGETS
from trtforge.targets.engine_json import record_of
from trtforge.targets.record import ENGINE_VERSION

ENGINE_FILE = "engine.json"


def read_engine(engine_dir: Path) -> dict[str, Any]:
    """engine.json of an engine directory.

    Raises:
        ForgeError: ``TF-BLD-020`` it is missing, malformed or of another version.
    """
    path = Path(engine_dir) / ENGINE_FILE
    try:
        engine = read_json_file(path)
        if not is_version(engine["version"], ENGINE_VERSION) or engine["target"] not in TARGETS:
            raise ValueError(f"version {engine['version']}, target {engine['target']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-BLD-020",
            f"{path} describes no engine that this version reads: {error}",
            asked=str(engine_dir),
            why="The directory is no engine, or was written by another version.",
            remedies=["Point at the engine directory of a bundle (BUNDLE/engine)", "Build the engine again"],
        ) from error
    return engine


def write_engine(out: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """Write engine.json last, whole or not at all; returns what it holds."""
    text = json.dumps(engine, indent=1, sort_keys=True) + "\n"
    partial = out / f"{ENGINE_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(out / ENGINE_FILE)
    return json.loads(text)


def require_whole(engine: dict[str, Any], engine_dir: Path) -> None:
    """Refuse a record that lacks what every engine of its target states.

    Raises:
        ForgeError: ``TF-BLD-020``.
    """
    try:
        record_of(engine)
    except ValueError as error:
        raise changed(engine_dir, f"lacks parts, or has them of another kind: {error}") from error


def changed(engine_dir: Path, how: str) -> ForgeError:
    """``TF-BLD-020``: the record is not as this version writes it."""
    return ForgeError(
        "TF-BLD-020",
        f"The record of the engine {how}",
        asked=str(Path(engine_dir) / ENGINE_FILE),
        why="It was changed or cut short; no engine that this version writes is like that.",
        remedies=["trtforge verify BUNDLE names what was changed", "Build the engine again"],
    )
