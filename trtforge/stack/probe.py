"""Asks a piece of a stack for the version that would really be loaded; pip's word is kept beside it.

Policy: a library is asked by its own function in a process of its own, so that one that is broken cannot take
the command with it. What cannot be loaded is absent, whatever metadata is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.machine.software import installed
from trtforge.tables import Component, Probe

_PROGRAM = Path(__file__).with_name("ask_library.py")
_TIMEOUT = 120
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
#: distribution -> package, where pip's name and Python's differ beyond the dash
_PACKAGES = {"nvidia-modelopt": "modelopt"}
_TENSORRT = ("libnvinfer.so", "libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8")
_CUDART = ("libcudart.so", "libcudart.so.13", "libcudart.so.12")
_NVML = ("libnvidia-ml.so.1", "libnvidia-ml.so")


@dataclass(frozen=True)
class Loaded:
    """What was found: the version that loads (None: nothing does), where it lies, and what pip says."""

    version: str | None
    where: str = ""
    pip: str | None = None


def probe(component: Component, find_server: Callable[[], tuple[str | None, str]] | None = None) -> Loaded:
    """Ask for a component.

    Args:
        find_server: (version, place) of the Triton server that would be started; default: the one on PATH.
    """
    pip = installed(component.distribution) if component.distribution is not None else None
    if component.probe is None:
        return Loaded(None, "", pip)
    if component.probe == "tritonserver" and find_server is not None:
        version, where = find_server()
    else:
        version, where = _PROBES[component.probe](component)
    return Loaded(version, where, pip)


_Answer = tuple[str | None, str]


def _ask(*words: str) -> dict[str, Any] | None:
    """The program's answer; None when it fails, crashes or hangs."""
    try:
        done = subprocess.run(
            [sys.executable, str(_PROGRAM), *words], capture_output=True, text=True, timeout=_TIMEOUT, check=True
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


def tensorrt_version(number: int) -> str:
    """``getInferLibVersion``'s number as text: 101401 → 10.14.1; before 10 it counted thousands (8601 → 8.6.1)."""
    scale = 10000 if number >= 100000 else 1000
    return f"{number // scale}.{number % scale // 100}.{number % 100}"


def _tensorrt(component: Component) -> _Answer:
    answer = _ask("library", "getInferLibVersion", *_TENSORRT)
    if not answer or not answer["version"]:
        return None, ""
    build = answer.get("build")
    return tensorrt_version(int(answer["version"])) + (f".{build}" if build else ""), str(answer["where"])


def _cudart(component: Component) -> _Answer:
    answer = _ask("library", "cudaRuntimeGetVersion", *_CUDART)
    if not answer or not answer["version"]:
        return None, ""
    number = int(answer["version"])
    return f"{number // 1000}.{number % 1000 // 10}", str(answer["where"])


def _driver(component: Component) -> _Answer:
    """The kernel's module decides; NVML is asked where /proc does not say."""
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s", text)
    if found:
        return found[1], str(_DRIVER_FILE)
    answer = _ask("library", "nvmlSystemGetDriverVersion", *_NVML)
    return (str(answer["version"]), str(answer["where"])) if answer and answer["version"] else (None, "")


def server_on_path() -> _Answer:
    """The Triton server on PATH: in NVIDIA's containers their release (25.12), else TRITON_VERSION beside it."""
    binary = shutil.which("tritonserver")
    if binary is None:
        return None, ""
    release = os.environ.get("NVIDIA_TRITON_SERVER_VERSION")
    if release:
        return release, binary
    for folder in Path(binary).resolve().parents[:2]:
        path = folder / "TRITON_VERSION"
        if path.is_file():
            return path.read_text(encoding="utf-8").strip(), binary
    return os.environ.get("TRITON_SERVER_VERSION"), binary


def _torch(component: Component) -> _Answer:
    """torch's version file, as Python would find it: importing torch takes seconds."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return None, ""
    path = Path(spec.origin).with_name("version.py")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r"^__version__\s*(?::[^=]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return (found[1], str(path)) if found else (None, str(path))


def _package(name: str) -> _Answer:
    if importlib.util.find_spec(name) is None:
        return None, ""
    answer = _ask("package", name)
    return (str(answer["version"]), str(answer["where"])) if answer else (None, f"package {name} cannot be imported")


def _distribution(component: Component) -> _Answer:
    name = component.distribution or component.name
    return _package(_PACKAGES.get(name, name.replace("-", "_")))


_PROBES: dict[Probe, Callable[[Component], _Answer]] = {
    "tensorrt": _tensorrt,
    "cudart": _cudart,
    "driver": _driver,
    "tensorrt_llm": lambda component: _package("tensorrt_llm"),
    "tritonserver": lambda component: server_on_path(),
    "torch": _torch,
    "python": lambda component: (platform.python_version(), sys.executable),
    "distribution": _distribution,
}
