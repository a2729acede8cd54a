"""The build stage of the ``torch`` target."""

from __future__ import annotations

from typing import Any

from builder.targets.request import Asked, BuildRequest
from builder.targets.torch import target
from trtforge.store.artifact import StageResult


def section(asked: Asked) -> dict[str, Any]:
    """The engine's contracts and the kernel table."""
    return {"torch": target.key_facts()}


def build(request: BuildRequest) -> StageResult:
    """The engine, with its linears counted by what they are executed as."""
    engine = target.build_engine(
        request.source,
        request.out,
        name=request.recipe.name,
        build=request.recipe.build,
        speculation=request.speculation,
        progress=request.progress,
    )
    summary = {key: value for key, value in engine.items() if key not in ("linears", "kernel_choices", "sha256")}
    kernels: dict[str, int] = {}
    for linear in engine["linears"]:
        name = f"{linear['stored']} as {linear['executed']}, {'native' if linear['native'] else 'emulated'}"
        kernels[name] = kernels.get(name, 0) + 1
    return StageResult(summary={**summary, "linears": kernels})
