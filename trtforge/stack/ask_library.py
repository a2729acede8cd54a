"""Run as a program: loads one library or package and prints its version as JSON. Imports nothing of trtforge.

``python ask_library.py library FUNCTION NAME…`` loads the first library that can be loaded and calls its version
function; ``python ask_library.py package NAME`` imports a package. A crash of either takes only this process with it.
"""

import ctypes
import importlib
import json
import sys
from pathlib import Path

#: where wheels keep libraries, below a folder of sys.path
WHEEL_FOLDERS = (
    "tensorrt_libs",
    "tensorrt_lean_libs",
    "nvidia/cuda_runtime/lib",
    "nvidia/cu13/lib",
    "nvidia/cu12/lib",
)


def load(names: list[str]) -> tuple[ctypes.CDLL | None, str]:
    """The first library that the loader finds by name, else one that a wheel brought; (library, name)."""
    for name in names:
        try:
            return ctypes.CDLL(name), name
        except OSError:
            continue
    for folder in sys.path:
        for place in WHEEL_FOLDERS:
            for path in (Path(folder) / place / name for name in names):
                if path.is_file():
                    try:
                        return ctypes.CDLL(str(path)), str(path)
                    except OSError:
                        continue
    return None, ""


def mapped(name: str) -> str:
    """The file behind a loaded library."""
    stem = Path(name).name.split(".so")[0]
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return name
    for line in lines:
        path = line.split(None, 5)[-1].strip()
        if Path(path).name.startswith(f"{stem}.so"):
            return path
    return name


def number(library: ctypes.CDLL, function: str) -> int | str | None:
    """What an int-valued version function answers; cudaRuntimeGetVersion and NVML write it to a place instead."""
    call = getattr(library, function)
    if function == "cudaRuntimeGetVersion":
        value = ctypes.c_int(0)
        return None if call(ctypes.byref(value)) else value.value
    if function == "nvmlSystemGetDriverVersion":
        library.nvmlInit_v2()
        text = ctypes.create_string_buffer(96)
        return None if call(text, 96) else text.value.decode()
    call.restype = ctypes.c_int32
    return int(call())


def main() -> None:
    kind, *words = sys.argv[1:]
    sys.path.pop(0)  # this program's own folder: its neighbours are no packages to import
    if kind == "package":
        module = importlib.import_module(words[0])
        answer: dict[str, object] | None = {"version": str(module.__version__), "where": str(module.__file__)}
    else:
        library, name = load(words[1:])
        answer = None
        if library is not None:
            answer = {"version": number(library, words[0]), "where": mapped(name)}
            if words[0] == "getInferLibVersion" and hasattr(library, "getInferLibBuildVersion"):
                answer["build"] = number(library, "getInferLibBuildVersion")
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
