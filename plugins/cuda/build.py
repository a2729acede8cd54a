"""Builds the CUDA op library with CMake, once per source hash, architectures and compiler; reads ptxas' report.

A build lies in the plugin cache (:mod:`plugins.building`) under its key: ``libtrtforge_cuda.so``,
``libtrtforge_cuda.a`` (for the TensorRT plugin library), ``build.log`` with the compiler's whole output, and
``report.json`` with registers, spills and shared memory of every kernel and architecture.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugins.building import REPORT, answer_of, build_once, call, is_whole
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.native.build import find_cmake
from trtforge.native.cache import cache_folder

#: Every family whose instructions differ: A100, A10, L4/L40S, H100/H200, B200/B300, RTX 50/GB10. None with an "a": no
#: kernel needs what one compute capability alone has, and code without it also runs on later ones of its major version.
ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
SHARED = "libtrtforge_cuda.so"
STATIC = "libtrtforge_cuda.a"
#: files of a build beside its report
FILES = (SHARED, STATIC, "build.log")
OLDEST_NVCC = (12, 8)
DEFAULT_ROOT = "/usr/local/cuda"
_INCLUDE = re.compile(r'^#include "(trtforge/[^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class KernelUse:
    """What ptxas says of one kernel on one architecture."""

    kernel: str
    architecture: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Build:
    """A finished build."""

    folder: Path
    seconds: float  #: of the compilation; 0 when it was there already
    kernels: tuple[KernelUse, ...]

    @property
    def library(self) -> Path:
        return self.folder / SHARED

    @property
    def static_library(self) -> Path:
        """The launchers for linking into another library."""
        return self.folder / STATIC


def source_tree() -> Path:
    return Path(__file__).resolve().parents[1]


def has_sources(plugins: Path | None = None) -> bool:
    """Whether the kernels' sources lie here."""
    tree = plugins or source_tree()
    needed = (tree / "cuda" / "CMakeLists.txt", tree / "cuda" / "launch.cuh", tree / "include" / "trtforge" / "cuda")
    return all(path.exists() for path in needed)


def source_hash(plugins: Path | None = None) -> str:
    """SHA-256 over everything that the library is compiled from."""
    tree = plugins or source_tree()
    digest = hashlib.sha256()
    for path in sorted({*source_files(tree), tree / "cuda" / "CMakeLists.txt"}):
        digest.update(f"{path.relative_to(tree)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def source_files(tree: Path) -> set[Path]:
    """What a compiler reads of a folder ``plugins``: the units, and every header that is included by way of them."""
    pending = [*tree.glob("cuda/*.cu*"), *tree.glob("cuda/*.hpp")]
    found: set[Path] = set()
    while pending:
        path = pending.pop()
        if path not in found:
            found.add(path)
            pending += [tree / "include" / name for name in _INCLUDE.findall(path.read_text(encoding="utf-8"))]
    return found


def built_library(plugins: Path | None = None) -> Path | None:
    """The newest cached GPU library of these sources; None when there is none."""
    if not has_sources(plugins):
        return None
    reports = cache_folder().glob(f"cuda-{source_hash(plugins)[:16]}-*/{REPORT}")
    builds = (path for path in reports if is_whole(path.parent, FILES))
    newest = max(builds, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else newest.parent / SHARED


def find_nvcc() -> tuple[str, tuple[int, int]]:
    """Path and version of nvcc.

    Raises:
        EnvironmentLacks: TF-ENV-003 when there is none, one that does not run, or one that does not know all
            architectures.
    """
    named = os.environ.get("CUDACXX")
    path = shutil.which(named or "nvcc")
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), DEFAULT_ROOT):
        if path is None and not named and root:
            path = shutil.which("nvcc", path=str(Path(root) / "bin"))
    remedies = [
        "install the CUDA toolkit 13 (package cuda-nvcc-13-0) and put its bin on PATH",
        "build in a container that has it, such as nvcr.io/nvidia/tensorrt, and set TRTFORGE_CUDA_LIBRARY",
    ]
    if path is None:
        raise EnvironmentLacks(
            "TF-ENV-003",
            "nvcc was not found",
            asked=f"CUDACXX={named}" if named else "nvcc",
            why="CUDACXX names no program that may be started." if named else "",
            remedies=remedies,
        )
    found = re.search(r"release (\d+)\.(\d+)", answer_of([path, "--version"]))
    if found is None:
        raise EnvironmentLacks(
            "TF-ENV-003",
            "this nvcc does not say its version",
            asked=path,
            why=f"{path} --version did not start, failed, or named no release.",
            remedies=remedies,
        )
    version = (int(found[1]), int(found[2]))
    if version < OLDEST_NVCC:
        raise EnvironmentLacks(
            "TF-ENV-003",
            "this nvcc is too old",
            asked=path,
            numbers={"found": ".".join(map(str, version)), "needed": ".".join(map(str, OLDEST_NVCC))},
            why="sm_100 and sm_120 are unknown to it.",
            remedies=remedies,
        )
    return path, version


def check_architectures(asked: Sequence[str]) -> tuple[str, ...]:
    """The architectures in a fixed order, without ``sm_``.

    Raises:
        ForgeError: TF-CLI-030 for a name that has no kernels.
    """
    names = [name.strip().removeprefix("sm_") for name in asked if name.strip()]
    unknown = [name for name in names if name not in ARCHITECTURES]
    if unknown or not names:
        raise ForgeError(
            "TF-CLI-030",
            f"no kernels are written for {', '.join(unknown) or 'no architecture'}",
            asked=",".join(asked),
            why="The kernels need sm_80's asynchronous copies and matrix instructions.",
            remedies=[f"choose from {', '.join(ARCHITECTURES)}", "leave --arch out for all of them"],
        )
    return tuple(name for name in ARCHITECTURES if name in names)


def build_cuda_library(
    architectures: Sequence[str] = ARCHITECTURES,
    *,
    plugins: Path | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
) -> Build:
    """The GPU library of these architectures, from the cache or compiled now.

    Raises:
        EnvironmentLacks: TF-ENV-001 … 003 without a C++ compiler, cmake or nvcc, TF-ENV-011 the cache cannot be
            written.
        ForgeError: TF-CLI-008 no source tree, TF-CLI-009 the build failed, TF-CLI-030 unknown architectures.
    """
    chosen = check_architectures(architectures)
    nvcc, version = find_nvcc()
    options = [
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
        f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(f'{name}-real' for name in chosen)}",
    ]
    key = f"{'_'.join(chosen)}-nvcc{version[0]}.{version[1]}-{_host_compiler()}"
    return _build("cuda", key, options, plugins or source_tree(), jobs, progress or SilentProgress())


def build_shim_library(*, plugins: Path | None = None, jobs: int = 2, progress: Progress | None = None) -> Build:
    """The same sources under the host shim, for tests on a CPU; from the cache or compiled now."""
    options = ["-DTRTFORGE_HOST_SHIM=ON"]
    return _build("shim", _host_compiler(), options, plugins or source_tree(), jobs, progress or SilentProgress())


def _build(kind: str, key: str, options: list[str], plugins: Path, jobs: int, progress: Progress) -> Build:
    if not has_sources(plugins):
        raise ForgeError(
            "TF-CLI-008",
            f"{plugins} holds no sources of the CUDA ops",
            asked=str(plugins),
            why="An installed wheel does not carry the kernels' sources.",
            remedies=["--source DIR with a checkout of trtforge"],
        )
    digest = source_hash(plugins)
    folder = cache_folder() / f"{kind}-{digest[:16]}-{key}"

    def make(scratch: Path, ready: Path) -> dict[str, Any]:
        log = _compile(plugins, scratch, [*options, f"-DTRTFORGE_SOURCE_HASH={digest}"], jobs, progress)
        for name in (SHARED, STATIC):
            shutil.move(scratch / "build" / name, ready / name)
        (ready / "build.log").write_text(log, encoding="utf-8")
        return {"kernels": report_of(parse_ptxas(log))}

    seconds = build_once(folder, FILES, make)
    return Build(folder, seconds, read_report(folder))


def _compile(plugins: Path, scratch: Path, options: list[str], jobs: int, progress: Progress) -> str:
    cmake = find_cmake()
    build = scratch / "build"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    progress.start("configuring", 2)
    log = run_build_step([cmake, "-S", str(plugins / "cuda"), "-B", str(build), *generator, *options])
    progress.advance()
    progress.start("compiling", 2)
    log += run_build_step([cmake, "--build", str(build), "-j", str(jobs), "-v"])
    progress.advance()
    return log


def run_build_step(command: list[str]) -> str:
    """The output of a compiler's driver.

    Raises:
        ForgeError: TF-CLI-009 it failed.
    """
    code, output = call(command)
    if code:
        faults = [line for line in output.splitlines() if re.search(r"error|warning", line, re.I)]
        raise ForgeError(
            "TF-CLI-009",
            "the native build failed",
            asked=" ".join(command),
            numbers={"status": code},
            why="\n".join((faults or output.strip().splitlines())[-15:]),
            remedies=["read the compiler's message above", "g++ 12 and nvcc 12.8 or newer are needed"],
        )
    return output


def _host_compiler() -> str:
    """The C++ compiler as part of a key; CXX may carry a launcher and options, as for CMake."""
    named = os.environ.get("CXX")
    try:
        words = shlex.split(named or "") or [shutil.which("c++") or "g++"]
    except ValueError:  # an open quote
        words = [named or ""]
    version = answer_of([*words, "-dumpfullversion"]) if shutil.which(words[0]) else ""
    if not version:
        raise EnvironmentLacks(
            "TF-ENV-001",
            "no C++ compiler was found",
            asked=f"CXX={named}" if named else "g++",
            why=f"{' '.join(words)} -dumpfullversion gives no version." if named else "",
            remedies=["apt-get install g++", *(["unset CXX"] if named else [])],
        )
    return f"gcc{version.splitlines()[0]}"


def read_report(folder: Path) -> tuple[KernelUse, ...]:
    """The kernels of a build in its folder; none beside a library that was built elsewhere."""
    try:
        document = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        return tuple(KernelUse(**use) for use in document["kernels"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def report_of(kernels: Sequence[KernelUse]) -> list[dict[str, Any]]:
    """The kernels as JSON-able objects."""
    return [asdict(use) for use in kernels]


def parse_ptxas(log: str) -> tuple[KernelUse, ...]:
    """Registers, spills and stack of every kernel in a compiler's output with ``-Xptxas -v``."""
    pattern = re.compile(
        r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<arch>\w+)'"
        r"(?P<body>.*?Used (?P<registers>\d+) registers)",
        re.S,
    )
    memory = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
    found = list(pattern.finditer(log))
    names = _readable(sorted({match["name"] for match in found}))
    uses = []
    for match in found:
        use = memory.search(match["body"])
        stack, stores, loads = (int(use[i]) for i in (1, 2, 3)) if use else (0, 0, 0)
        uses.append(KernelUse(names[match["name"]], match["arch"], int(match["registers"]), stores, loads, stack))
    return tuple(sorted(uses, key=lambda use: (use.kernel, ARCHITECTURES.index(use.architecture))))


def _readable(mangled: Sequence[str]) -> dict[str, str]:
    """Kernels' names with their template arguments; the mangled ones where c++filt (binutils) is missing."""
    tool = shutil.which("c++filt")
    if not tool or not mangled:
        return {name: name for name in mangled}
    done = subprocess.run([tool], input="\n".join(mangled), capture_output=True, text=True, check=True)
    plain = [re.sub(r"^void |trtforge::(cuda::)?|\(.*$", "", line) for line in done.stdout.splitlines()]
    return dict(zip(mangled, plain, strict=True))
