"""What an artifact of the ``trtllm-llmapi`` target holds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from builder.targets.description import missing_files
from builder.targets.trtllm.description import describe, report_rows
from builder.targets.trtllm.script import CHECKPOINT_DIR
from trtforge.ground.safetensors_header import WEIGHTS_NAME, weight_files

__all__ = ["describe", "engine_info", "report_rows"]


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json, the command that serves it, and files that are gone; ``capability`` says nothing here.

    Raises:
        ForgeError: ``TF-SRC-006``/``007`` shards of the checkpoint are missing, or its index.
    """
    weights = weight_files(artifact / CHECKPOINT_DIR) or [WEIGHTS_NAME]
    missing = missing_files(artifact, [f"{CHECKPOINT_DIR}/{name}" for name in weights])
    return {**engine, "serve_command": shlex.join(engine["serve"]), "missing": missing}
