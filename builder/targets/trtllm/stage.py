"""What the build stages of TensorRT-LLM's two targets share."""

from __future__ import annotations

from typing import Any

from builder.targets.request import Asked
from builder.targets.trtllm.common import engine_stack
from trtforge.ground.hashing import hash_file


def section(asked: Asked) -> tuple[dict[str, Any], str]:
    """What both depend on, and the release of TensorRT-LLM; keys that only one has are None in the other's."""
    recipe, draft = asked.recipe, asked.draft
    row, version = engine_stack(recipe.build.target, recipe.stack)
    found = {
        "speculation": recipe.speculation.model_dump(mode="json"),
        "stack": {"name": row.name, "container": row.container, "tensorrt_llm": version},
        "not_compiled": None,
        "timing_cache": None,
        "draft": {path.name: hash_file(path) for path in sorted(draft.iterdir()) if path.is_file()} if draft else None,
    }
    return found, version
