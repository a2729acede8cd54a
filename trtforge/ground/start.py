"""``python -P -m trtforge.ground.start MODULE [ARGUMENT …]``: run a module of ours as a program.

``python -m MODULE`` would run whichever module of that name comes first on Python's path.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence

from trtforge.ground.own_packages import python_path


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs ``module`` with this Python."""
    return [sys.executable, "-P", "-m", "trtforge.ground.start", module, *arguments]


def variables() -> Mapping[str, str]:
    """The environment for :func:`command`: this process's, with the trtforge that runs here first on the path."""
    return {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}


if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
