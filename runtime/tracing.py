"""Named ranges around the parts of a step: NVTX when a CUDA torch is already loaded and asked for, else nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_enabled: bool | None = None


def trace(name: str) -> AbstractContextManager[Any]:
    """A range called ``name``; free unless ``TRTFORGE_NVTX=1`` and CUDA are there."""
    global _enabled
    if _enabled is None:
        torch = sys.modules.get("torch")
        _enabled = os.environ.get("TRTFORGE_NVTX") == "1" and torch is not None and torch.cuda.is_available()
    if not _enabled:
        return _NOTHING
    nvtx: Any = sys.modules["torch"].cuda.nvtx
    return nvtx.range(name)
