"""What an artifact of the ``trtllm-engine`` target holds, and its compiled engine against what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.targets.description import missing_files
from builder.targets.trtllm import script
from builder.targets.trtllm.checkpoint import CONFIG_FILE
from builder.targets.trtllm.description import describe, report_rows
from builder.targets.trtllm.readback import Finding, TrtllmEngine, compare_engine, has_engine, read_trtllm_engine
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file

__all__ = ["check_engine", "describe", "engine_info", "report_rows"]


def check_engine(artifact: Path, engine: dict[str, Any], compiled: TrtllmEngine | None = None) -> list[Finding]:
    """The compiled engine of an artifact against its engine.json and its checkpoint.

    Args:
        compiled: the engine as it was read; None: it is read.

    Raises:
        ForgeError: ``TF-BLD-060`` and ``TF-BLD-066`` where one of the two cannot be read.
    """
    path = artifact / script.CHECKPOINT_DIR / CONFIG_FILE
    try:
        checkpoint = read_json_file(path)
        if not isinstance(checkpoint, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-BLD-066",
            f"The checkpoint that the engine was built from cannot be read: {error}",
            asked=str(path),
            why="The engine is held against the checkpoint's config.json.",
            remedies=["trtforge verify BUNDLE", "trtforge run RECIPE --force build"],
        ) from error
    expected = {
        "version": engine["tensorrt_llm"],
        "settings": engine["settings"],
        "checkpoint": checkpoint,
        "architectures": engine.get("architectures", ()),  # artifacts before 2026-12 do not say it
    }
    return compare_engine(compiled or read_trtllm_engine(artifact / script.ENGINE_DIR), expected)


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json, whether there is a compiled engine now, what it records and where it differs from what was asked.

    ``missing``: files of the checkpoint that are gone. ``capability`` is the processor's and says nothing here.
    """
    ranks = range(engine["parallel"]["tp"] * engine["parallel"]["pp"])
    weights = [f"{script.CHECKPOINT_DIR}/rank{rank}.safetensors" for rank in ranks]
    info = {**engine, "engine": None, "findings": [], "missing": missing_files(artifact, weights)}
    if has_engine(artifact / script.ENGINE_DIR):
        compiled = read_trtllm_engine(artifact / script.ENGINE_DIR)
        info["engine"] = compiled.to_json()
        info["findings"] = [finding.to_json() for finding in check_engine(artifact, engine, compiled)]
    if engine.get("draft") is not None:
        info["draft"] = engine_info(artifact / script.DRAFT_DIR, engine["draft"])
        info["findings"] += [
            {**finding, "message": f"draft: {finding['message']}"} for finding in info["draft"]["findings"]
        ]
        info["missing"] += [f"{script.DRAFT_DIR}/{name}" for name in info["draft"]["missing"]]
    return info
