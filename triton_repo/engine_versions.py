"""The TensorRT-LLM version that built a model's engine, from what lies beside the engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from triton_repo.lint.files import Unreadable, read_text
from triton_repo.lint.repository import Model
from trtforge.ground.paths import real_path

_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?([.a-z]+\d+)*")


def engine_folders(model: Model) -> list[Path]:
    """Where the engine can lie: what ``gpt_model_path`` names, and the version folders."""
    stated = model.parameter("gpt_model_path")
    folder = model.here(stated) if stated is not None else None
    return [*([folder] if folder is not None else []), *(version.folder for version in reversed(model.versions))]


def engine_version(model: Model) -> str | None:
    """The version, as ``config.json`` of the engine says it; None where no engine can be reached that says it."""
    for folder in engine_folders(model):
        document = _document(folder / "config.json")
        pretrained = document.get("pretrained_config")
        if "build_config" not in document and "builder_config" not in document:
            continue
        for said in (document.get("version"), pretrained.get("version") if isinstance(pretrained, dict) else None):
            if isinstance(said, str) and _VERSION.fullmatch(said):
                return said.removeprefix("v")
    return None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path, real_path(path.parent)))
    except (Unreadable, ValueError, OSError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
