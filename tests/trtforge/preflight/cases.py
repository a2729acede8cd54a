"""Every rule's cases that settings, a model's record and a machine show: one that breaks it, one that does not."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tests.trtforge.preflight.settings import GPU, Case, triton

#: of every ``cases_*.py`` that lies here
CASES: dict[str, tuple[Case, Case]] = {
    code: cases
    for file in sorted(Path(__file__).parent.glob("cases_*.py"))
    for code, cases in import_module(f"{__package__}.{file.stem}").CASES.items()
}

#: rules about this version of trtforge: their cases depend on what it implements, so they say it themselves
UNIMPLEMENTED: dict[str, dict[str, Any]] = {
    "TF-K23-002": {"implemented_targets": ("torch",), "settings": GPU},
    "TF-K23-003": {"implemented_layouts": ("native",), "settings": triton(layout="inflight_batcher_llm")},
}
