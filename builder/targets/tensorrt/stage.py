"""The build stage of the ``tensorrt`` target."""

from __future__ import annotations

from typing import Any

from builder.targets.request import Asked, BuildRequest
from builder.targets.tensorrt import target
from trtforge.store.artifact import StageResult


def section(asked: Asked) -> dict[str, Any]:
    """The stack, and this machine's TensorRT, GPU and plugins."""
    return {"tensorrt": {"stack": asked.recipe.stack, "here": target.key_facts()}}


def build(request: BuildRequest) -> StageResult:
    """A plan of this machine's GPU; kernels are chosen by measured times, so its bytes are measured too."""
    recipe = request.recipe
    engine = target.build_engine(
        request.source,
        request.out,
        name=recipe.name,
        build=recipe.build,
        speculation=request.speculation,
        stack=recipe.stack,
        progress=request.progress,
    )
    plan = {key: engine["tensorrt"].pop(key) for key in ("plan_bytes", "layers")}
    stored: dict[str, int] = {}
    for linear in engine["linears"]:
        stored[linear["stored"]] = stored.get(linear["stored"], 0) + 1
    summary = {key: value for key, value in engine.items() if key not in ("linears", "sha256")}
    return StageResult(summary={**summary, "linears": stored}, measurements=plan, measured=target.MEASURED)
