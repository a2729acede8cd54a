"""Builds the host op library with CMake, from the sources that a checkout or a wheel holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.own_packages import in_wheel, root
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.native.cache import cache_folder
from trtforge.native.host_library import HOST_LIBRARY


def build_host_library(
    source: Path | None = None, build_dir: Path | None = None, *, jobs: int = 2, progress: Progress | None = None
) -> Path:
    """Configure and build; the library's path.

    Raises:
        EnvironmentLacks: TF-ENV-001 no compiler, TF-ENV-002 no cmake.
        ForgeError: TF-CLI-008 no source tree, TF-CLI-009 the build failed.
    """
    progress = progress or SilentProgress()
    tree = (source or Path(root())).resolve()
    if not (tree / "CMakeLists.txt").is_file():
        raise ForgeError(
            "TF-CLI-008",
            f"{tree} holds no CMakeLists.txt",
            asked=str(source or tree),
            why="That file and the folder plugins beside it are what the library is built from.",
            remedies=["--source DIR with a checkout of trtforge", "pip install --force-reinstall trtforge"],
        )
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise EnvironmentLacks("TF-ENV-001", "no C++ compiler was found", asked="g++", remedies=["apt-get install g++"])
    cmake = find_cmake()
    folder = (build_dir or _build_folder(tree)).resolve()
    progress.start("configuring", 2)
    _call([cmake, "-S", str(tree), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"])
    progress.advance()
    progress.start("compiling", 2)
    _call([cmake, "--build", str(folder), "-j", str(jobs)])
    progress.advance()
    built = sorted(folder.rglob(HOST_LIBRARY))
    if not built:
        raise ForgeError(
            "TF-CLI-009",
            f"the build made no {HOST_LIBRARY}",
            asked=str(folder),
            remedies=["remove the build folder and try again"],
        )
    return built[0]


def _build_folder(tree: Path) -> Path:
    """In the tree, as a developer expects; what lies in site-packages is pip's, and often read-only."""
    return cache_folder() / "host" if tree == Path(root()).resolve() and in_wheel() else tree / "build" / "host"


def find_cmake() -> str:
    """Path of cmake.

    Raises:
        EnvironmentLacks: TF-ENV-002 when there is none.
    """
    cmake = shutil.which("cmake") or _beside_python("cmake")
    if cmake is None:
        raise EnvironmentLacks(
            "TF-ENV-002", "cmake was not found", asked="cmake", remedies=["apt-get install cmake", "pip install cmake"]
        )
    return cmake


def _beside_python(name: str) -> str | None:
    path = Path(sys.executable).parent / name
    return str(path) if path.is_file() else None


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ForgeError(
            "TF-CLI-009",
            "the native build failed",
            asked=" ".join(command),
            numbers={"status": done.returncode},
            why=tail,
            remedies=["read the compiler's message above", "g++ 12 or newer is needed"],
        )
