"""The build stage of the ``tensorrt-rtx`` target."""

from __future__ import annotations

from typing import Any

from builder.targets.request import Asked, BuildRequest
from builder.targets.rtx import target
from trtforge.machine.software import tool_versions
from trtforge.store.artifact import StageResult


def section(asked: Asked) -> dict[str, Any]:
    """The compiler's release."""
    return {"tensorrt_rtx": tool_versions(("tensorrt-rtx",))}


def build(request: BuildRequest) -> StageResult:
    """RTX engines, whose hashes are part of the result: a rebuild gives the same bytes."""
    engine = target.build_engine(
        request.source,
        request.out,
        name=request.recipe.name,
        build=request.recipe.build,
        progress=request.progress,
    )
    return StageResult(summary=engine, measured=(target.LOG_FILE,))
