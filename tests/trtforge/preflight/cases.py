"""Every rule's cases that settings, a model's record and a machine show: one that breaks it, one that does not."""

from __future__ import annotations

from typing import Any

from tests.trtforge.preflight import cases_memory_shapes, cases_serving
from tests.trtforge.preflight.settings import GPU, Case, triton

CASES: dict[str, tuple[Case, Case]] = {**cases_memory_shapes.CASES, **cases_serving.CASES}

#: rules about this version of trtforge: their cases depend on what it implements, so they say it themselves
UNIMPLEMENTED: dict[str, dict[str, Any]] = {
    "TF-K23-002": {"implemented_targets": ("torch",), "settings": GPU},
    "TF-K23-003": {"implemented_layouts": ("native",), "settings": triton(layout="inflight_batcher_llm")},
}
