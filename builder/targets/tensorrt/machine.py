"""What this machine has for TensorRT: version, GPU, plugin library; refusals that name what to install.

Policy: versions come from the package's metadata (importing TensorRT loads its libraries; the worker does that in a
process of its own and reports the version that was really loaded). The GPU is the one that the plugin library's CUDA
runtime sees, so CUDA_VISIBLE_DEVICES counts.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.paths import user_path
from trtforge.machine.gpus import gpu_architectures
from trtforge.machine.software import installed
from trtforge.native.plugin_library import PluginLibrary, device_capability, find_plugin_library, plugin_library
from trtforge.stack.check import fits
from trtforge.stack.tensorrt_versions import is_supported, supported_range
from trtforge.tables import stack_table
from trtforge.targets import DEFAULT

TARGET = "tensorrt"
COMPONENT = "TensorRT"
_DISTRIBUTIONS = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@dataclass(frozen=True)
class Here:
    """A machine that can build: TensorRT's version, ``sm_90`` of its GPU, its plugin library."""

    tensorrt: str
    architecture: str
    plugins: PluginLibrary


def newest_version() -> Version:
    row = stack_table().newest(TARGET)
    found = None if row is None else row.version_of(COMPONENT)
    assert found is not None
    return Version(found)


def tensorrt_version(stack: str | None) -> str | None:
    """The installed TensorRT; None where there is none.

    Raises:
        ForgeError: ``TF-BLD-102`` it is not supported, or not the stack's.
    """
    found = next(filter(None, map(installed, _DISTRIBUTIONS)), None)
    if found is None or find_spec("tensorrt") is None:
        return None
    row = stack_table().row(stack) if stack else None
    wanted = None if row is None else row.version_of(COMPONENT)
    if not is_supported(found) or (wanted is not None and not fits(wanted, found)):
        raise ForgeError(
            "TF-BLD-102",
            f"TensorRT {found} is installed; {wanted or supported_range()} is needed",
            asked=f"stack: {stack}" if wanted else "build.target: tensorrt",
            numbers={"installed": found, "needed": wanted or supported_range()},
            why="A plan loads only under the TensorRT that compiled it, and other versions have another interface.",
            remedies=[
                _install(stack),
                *(
                    f"stack: {other.name}"
                    for other in stack_table().of(TARGET)
                    if fits(other.version_of(COMPONENT) or "", found)
                ),
            ],
        )
    return found


def require(found: str | None, architectures: tuple[str, ...], stack: str | None) -> Here:
    """The machine as one that can build.

    Raises:
        EnvironmentLacks: ``TF-BLD-100`` no TensorRT, ``TF-BLD-101`` no GPU, ``TF-OPS-201`` no plugin library,
            ``TF-OPS-205`` one without kernels for the GPU.
        ForgeError: ``TF-BLD-103`` the GPU is of another architecture than asked.
    """
    if found is None or not _loads("libnvinfer"):
        raise EnvironmentLacks(
            "TF-BLD-100",
            "TensorRT is not installed" if found is None else "TensorRT's library libnvinfer is not installed",
            asked="build.target: tensorrt",
            numbers={"needed": _wanted(stack) if stack else supported_range()},
            why="The builder is NVIDIA's; its packages are not part of trtforge.",
            remedies=[
                _install(stack),
                *containers(stack),
                f"build.target: {DEFAULT.name} runs the same graph without it",
            ],
        )
    if not gpu_architectures():
        raise EnvironmentLacks(
            "TF-BLD-101",
            "There is no NVIDIA GPU or no driver here",
            asked="build.target: tensorrt",
            why="TensorRT times kernels on the GPU that will serve, so the engine is built there.",
            remedies=[
                "run this on the machine that serves",
                *containers(stack),
                f"build.target: {DEFAULT.name} runs the same graph on a CPU",
            ],
        )
    library = plugin_library()
    here = device_capability(library) or gpu_architectures()[0]
    if architectures and here not in architectures:
        raise ForgeError(
            "TF-BLD-103",
            f"The GPU here is {here}; the recipe asks for {', '.join(architectures)}",
            asked=f"build.architectures: {', '.join(architectures)}",
            numbers={"here": here, "asked": list(architectures)},
            why="A plan holds machine code for one architecture, and TensorRT builds it on that GPU.",
            remedies=[f"build.architectures: [{here}]", f"run this on a machine with {architectures[0]}"],
        )
    library.require_kernels(here)
    return Here(found, here, library)


def library_or_none() -> PluginLibrary | None:
    path = find_plugin_library()
    return plugin_library(path) if path is not None and path.is_file() else None


def containers(stack: str | None) -> list[str]:
    """Remedies that name the containers with a TensorRT that this target takes: the stack's, or any."""
    wanted = _wanted(stack) if stack else None
    found = {}
    for row in stack_table().rows:
        has = row.version_of(COMPONENT)
        if row.container and has and is_supported(has) and (wanted is None or fits(wanted, has)):
            found[row.container] = has
    return [f"run in {image} (TensorRT {has})" for image, has in found.items()]


def timing_cache_path(here: Here) -> Path:
    """Where kernel timings of this version and architecture are kept between builds of this user."""
    home = user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", code="TF-BLD-106", asked="XDG_CACHE_HOME")
    return home / "trtforge" / "tensorrt" / f"timing-{here.tensorrt}-{here.architecture}.cache"


def _install(stack: str | None) -> str:
    """A release of three numbers names every build of it."""
    wanted = _wanted(stack)
    return f"pip install 'tensorrt=={wanted}{'.*' if wanted.count('.') < 3 else ''}'"


def _wanted(stack: str | None) -> str:
    row = stack_table().row(stack) if stack else None
    return (None if row is None else row.version_of(COMPONENT)) or str(newest_version())


def _loads(name: str) -> bool:
    """Whether the library that TensorRT's package needs can be found: beside it, or by the system's loader."""
    spec = find_spec("tensorrt_libs")
    for location in (spec.submodule_search_locations if spec is not None else None) or ():
        if any(Path(location).glob(f"{name}.so*")):
            return True
    if ctypes.util.find_library(name.removeprefix("lib")) is not None:
        return True
    for major in (10, 11):
        try:
            ctypes.CDLL(f"{name}.so.{major}")
            return True
        except OSError:
            continue
    return False
