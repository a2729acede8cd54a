"""Compiles ``heap.c``: the heap under which a build of an RTX engine gives the same bytes in every process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from trtforge.ground.errors import EnvironmentLacks

SOURCE = Path(__file__).with_name("heap.c")
LIBRARY = "libtrtforge_stable_heap.so"
#: initial-exec: the heap's own variables of a thread need no allocation
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-ftls-model=initial-exec", "-fvisibility=hidden")


def compile_heap(folder: Path) -> Path:
    """Compile the heap into ``folder`` (half a second).

    Raises:
        EnvironmentLacks: ``TF-ENV-001`` there is no compiler, ``TF-BLD-089`` it does not compile the heap.
    """
    named = os.environ.get("CXX") or "g++"
    compiler = shutil.which(named)
    if compiler is None:
        raise EnvironmentLacks("TF-ENV-001", "no C++ compiler was found", asked=named, remedies=["apt-get install g++"])
    library = folder / LIBRARY
    command = [compiler, "-x", "c", *_FLAGS, "-o", str(library), str(SOURCE)]
    numbers: dict[str, Any] = {}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0:
            return library
        numbers = {"exit_code": done.returncode, "last_lines": done.stderr.strip().splitlines()[-3:]}
    except OSError as error:  # a file that may be executed and is no program
        numbers = {"exit_code": None, "last_lines": [str(error)]}
    raise EnvironmentLacks(
        "TF-BLD-089",
        f"{named} does not compile the heap that RTX engines are built under",
        asked=f"build.target: tensorrt-rtx, {SOURCE.name}",
        numbers=numbers,
        why="What TensorRT for RTX writes follows from the addresses of its objects; under the C library's heap two "
        "builds of one graph may differ.",
        remedies=["apt-get install g++", "point the environment variable CXX at a g++"],
    )
