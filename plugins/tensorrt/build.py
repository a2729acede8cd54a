"""Builds the TensorRT plugin library over the launchers' static library; kept like the CUDA op library's builds.

A build lies in the plugin cache under its key (sources of both layers, architectures, compilers, TensorRT headers):
``libtrtforge_tensorrt.so``, ``build.log`` and ``report.json``. TensorRT's headers are the caller's: production builds
point at TensorRT's own include folder, tests at a pinned copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins.building import REPORT, build_once
from plugins.cuda.build import (
    ARCHITECTURES,
    build_cuda_library,
    build_shim_library,
    find_nvcc,
    run_build_step,
    source_tree,
)
from trtforge import __version__
from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.native.build import find_cmake
from trtforge.native.cache import cache_folder
from trtforge.native.plugin_library import LIBRARY

#: where NVIDIA's packages and containers put the headers
HEADER_FOLDERS = (
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
    "/usr/local/tensorrt/include",
    "/usr/include",
)
_HEADER = "NvInferRuntime.h"
_SOURCES = ("*.cpp", "*.hpp", "*.inc", "*.map", "CMakeLists.txt")


@dataclass(frozen=True)
class Build:
    """A finished build of the plugin library."""

    library: Path
    seconds: float  #: of both compilations; 0 when everything was there already


def find_headers(given: Path | None = None) -> tuple[Path, str]:
    """The folder with TensorRT's headers, and their version.

    Raises:
        EnvironmentLacks: ``TF-ENV-010`` there is none, or it is not TensorRT's or too old.
    """
    for folder in (given,) if given is not None else map(Path, HEADER_FOLDERS):
        if folder is not None and (folder / _HEADER).is_file():
            version = header_version(folder)
            if version and tuple(int(part) for part in version.split(".")[:2]) >= (10, 14):
                return folder, version
    raise EnvironmentLacks(
        "TF-ENV-010",
        "TensorRT's headers (10.14 or newer) were not found",
        asked=str(given) if given is not None else ", ".join(HEADER_FOLDERS),
        why="The plugin layer is compiled against NvInferRuntime.h; libnvinfer itself is not linked.",
        remedies=[
            "apt-get install libnvinfer-headers-dev (NVIDIA's CUDA repository)",
            "trtforge plugins build --tensorrt-include DIR",
            "build in a container that has TensorRT",
        ],
    )


def header_version(folder: Path) -> str | None:
    """ "10.14.1" of the headers in a folder; None when they do not say."""
    path = folder / "NvInferVersion.h"
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    parts = []
    for part in ("MAJOR", "MINOR", "PATCH"):
        found = re.search(rf"^#define (?:TRT_{part}_ENTERPRISE|NV_TENSORRT_{part}) (\d+)", text, re.M)
        if found is None:
            return None
        parts.append(found[1])
    return ".".join(parts)


def layer_hash(plugins: Path) -> str:
    """SHA-256 over the sources of this layer in a folder ``plugins``."""
    folder = plugins / "tensorrt"
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _SOURCES for path in folder.glob(pattern)}):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def build_plugin_library(
    headers: Path | None = None,
    architectures: Sequence[str] = ARCHITECTURES,
    *,
    checked: bool = False,
    plugins: Path | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> Build:
    """The plugin library for GPUs, from the cache or compiled now.

    Args:
        headers: TensorRT's include folder; default: where its packages put it.
        checked: look at every index on the device (slow; no CUDA graphs).
        plugins: the folder with the sources; default: this source tree's.

    Raises:
        EnvironmentLacks: ``TF-ENV-001`` … ``003`` compilers and cmake, ``TF-ENV-010`` TensorRT's headers,
            ``TF-ENV-011`` the cache.
        ForgeError: ``TF-CLI-008``, ``009``, ``030`` as the CUDA op library's build.
    """
    folder, version = find_headers(headers)
    progress = progress or SilentProgress()
    tree = plugins or source_tree()
    cuda = build_cuda_library(architectures, plugins=tree, jobs=jobs, progress=progress)
    root = Path(find_nvcc()[0]).resolve().parents[1]
    options = [f"-DTRTFORGE_CUDA_INCLUDE={root / 'include'}"]
    name = f"tensorrt-{cuda.folder.name.removeprefix('cuda-')}"
    return _build(tree, name, options, folder, version, cuda.static_library, cuda.seconds, checked, jobs, progress)


def build_shim_plugin_library(headers: Path, *, checked: bool = False, jobs: int = 2) -> Build:
    """The same library with kernels that run on the CPU, for tests."""
    folder, version = find_headers(headers)
    shim = build_shim_library(jobs=jobs)
    options = ["-DTRTFORGE_HOST_SHIM=ON"]
    name = f"shimmed-tensorrt-{shim.folder.name.removeprefix('shim-')}"
    tree = source_tree()
    return _build(
        tree, name, options, folder, version, shim.static_library, shim.seconds, checked, jobs, SilentProgress()
    )


def _build(
    plugins: Path,
    name: str,
    options: list[str],
    headers: Path,
    version: str,
    launchers: Path,
    before: float,
    checked: bool,
    jobs: int,
    progress: Progress,
) -> Build:
    key = f"{name}-{layer_hash(plugins)[:16]}-trt{version}{'-checked' if checked else ''}"
    folder = cache_folder() / key

    def make(scratch: Path, ready: Path) -> dict[str, Any]:
        cmake, place = find_cmake(), scratch / "build"
        settings = [
            f"-DTRTFORGE_TENSORRT_INCLUDE={headers}",
            f"-DTRTFORGE_LAUNCHERS={launchers}",
            f"-DTRTFORGE_VERSION={__version__}",
            f"-DTRTFORGE_CHECKED={'ON' if checked else 'OFF'}",
        ]
        progress.start("compiling the TensorRT layer", 2)
        log = run_build_step([cmake, "-S", str(plugins / "tensorrt"), "-B", str(place), *options, *settings])
        progress.advance()
        log += run_build_step([cmake, "--build", str(place), "-j", str(jobs)])
        progress.advance()
        shutil.move(place / LIBRARY, ready / LIBRARY)
        (ready / "build.log").write_text(log, encoding="utf-8")
        return {"tensorrt_headers": version, "checked": checked}

    seconds = build_once(folder, (LIBRARY, "build.log"), make)
    with contextlib.suppress(OSError):  # a cache that is only read has the order that it has
        (folder / REPORT).touch()  # the newest is the one that loaders take
    return Build(folder / LIBRARY, before + seconds)
