"""What an artifact of the ``trtllm-llmapi`` target holds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from builder.targets.trtllm.description import describe, report_rows

__all__ = ["describe", "engine_info", "report_rows"]


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json and the command that serves it; ``capability`` is the processor's and says nothing here."""
    return {**engine, "serve_command": shlex.join(engine["serve"])}
