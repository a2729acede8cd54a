"""The build stage of the ``trtllm-llmapi`` target."""

from __future__ import annotations

from typing import Any

from builder.targets.request import Asked, BuildRequest
from builder.targets.trtllm import stage as shared
from builder.targets.trtllm.common import engine_stack
from builder.targets.trtllm_llmapi import target
from trtforge.store.artifact import StageResult


def section(asked: Asked) -> dict[str, Any]:
    """Stack, speculation and draft."""
    return shared.section(asked)[0]


def build(request: BuildRequest) -> StageResult:
    """The checkpoint with what starts it; its settings are those of the repository's layout."""
    recipe, taps = request.recipe, None
    if request.draft is not None:
        _, version = engine_stack(recipe.build.target, recipe.stack)
        head = target.served_head(request.draft, request.source, version, recipe.speculation, whole=False)
        taps = head.taps if head is not None else None
    draft = target.DRAFT_DIR if recipe.speculation.draft else None
    engine = target.build_engine(
        request.source,
        request.out,
        name=recipe.name,
        build=recipe.build,
        settings=request.settings_of(recipe, target.CHECKPOINT_DIR, draft, taps),
        speculation=recipe.speculation,
        stack=recipe.stack,
        draft=request.draft,
        progress=request.progress,
    )
    return StageResult(summary=engine)
