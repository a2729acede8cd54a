"""How to call this installation's programs from a shell: by name when PATH leads to them, else by path."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """``name`` as a shell should call it to get this environment's own ``name`` (``trtforge``, ``python``)."""
    beside = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if not beside.exists() or (on_path is not None and Path(on_path) == beside):
        return name
    near = os.path.relpath(beside)
    return str(beside) if near.startswith("..") else near
