"""What this machine has for each engine target, and what to install where something lacks.

Policy: nothing heavy is imported; versions come from package metadata. The Triton server is looked for by
the launcher, whose finder is handed in, so that ``doctor`` and ``serve`` cannot disagree.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from trtforge.errors import ForgeError
from trtforge.preflight.machine import Machine
from trtforge.recipe.units import format_size
from trtforge.store.machine import gpu_architectures, host_isa, host_library_path, tool_versions
from trtforge.tables import StackRow, stack_table

Status = Literal["ok", "missing", "warning"]
PORTS = (8000, 8001, 8002)
_MIN_SHM = 64 * 2**20
_MIN_DISK = 4 * 2**30
_MIN_MEMORY = 4 * 2**30


@dataclass(frozen=True)
class Item:
    """One thing that was looked at. ``needed_by`` names targets; an empty tuple is information only."""

    name: str
    status: Status
    detail: str
    needed_by: tuple[str, ...] = ()
    remedy: str | None = None
    package: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The item as one JSON-able object."""
        return {
            "name": self.name,
            "status": self.status,
            "detail": self.detail,
            "needed_by": list(self.needed_by),
            "remedy": self.remedy,
            "debian_package": self.package,
        }


@dataclass(frozen=True)
class Verdict:
    """Whether a target can be used here, and what it lacks."""

    target: str
    ready: bool
    lacks: tuple[str, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The verdict as one JSON-able object."""
        return {"target": self.target, "ready": self.ready, "lacks": list(self.lacks), "note": self.note}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that ``trtforge doctor`` says."""

    items: tuple[Item, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ready(self) -> bool:
        """Whether every target that this version builds can be used."""
        implemented = stack_table().implemented_targets
        return all(verdict.ready for verdict in self.verdicts if verdict.target in implemented)

    @property
    def packages(self) -> tuple[str, ...]:
        """Debian packages that are missing for the implemented targets."""
        implemented = set(stack_table().implemented_targets)
        found = [
            item.package
            for item in self.items
            if item.status == "missing" and item.package and implemented & set(item.needed_by)
        ]
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as one JSON-able object."""
        return {
            "ready": self.ready,
            "debian_packages": list(self.packages),
            "targets": [verdict.to_json() for verdict in self.verdicts],
            "items": [item.to_json() for item in self.items],
        }


def examine(machine: Machine, find_server: Callable[[], str], ports: Sequence[int] = PORTS) -> Diagnosis:
    """Look at this machine.

    Args:
        machine: memory and disk.
        find_server: says which Triton server would be started; raises ForgeError when none can.
        ports: the ports that ``trtforge serve`` takes by default.
    """
    row = stack_table().newest("torch")
    assert row is not None
    items = [
        _python(),
        _host_library(),
        _program("g++", "g++", "compiles the host op library", ()),
        _program("cmake", "cmake", "configures the build of the native libraries (pip brings its own)", ()),
        *_packages(row),
        _numpy(row),
        _server(find_server),
        _shared_memory(),
        *(_port(port) for port in ports),
        _memory(machine),
        _disk(machine),
        Item("processor", "ok", f"{machine.cores} cores, {' '.join(host_isa()) or 'no vector extensions known'}"),
        _program("nvcc", "nvidia-cuda-toolkit", "compiles CUDA kernels", ("tensorrt",)),
        _driver(),
        _library("tensorrt", "tensorrt", ("tensorrt",)),
        _library("tensorrt-rtx", "tensorrt_rtx", ("tensorrt-rtx",)),
        _library("tensorrt-llm", "tensorrt_llm", ("trtllm-engine", "trtllm-llmapi")),
    ]
    return Diagnosis(tuple(items), tuple(_verdict(target, items) for target in _targets()))


def _targets() -> list[str]:
    return list(dict.fromkeys(target for row in stack_table().rows for target in row.targets))


def _verdict(target: str, items: Sequence[Item]) -> Verdict:
    lacks = tuple(item.name for item in items if item.status == "missing" and target in item.needed_by)
    implemented = target in stack_table().implemented_targets
    note = "" if implemented else "not in this version of trtforge"
    return Verdict(target, implemented and not lacks, lacks, note)


def _python() -> Item:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        return Item("python", "ok", f"{version} ({sys.executable})", ("torch",))
    return Item(
        "python", "missing", f"{version}; 3.11 or 3.12 is needed", ("torch",), "use Python 3.11 or 3.12", "python3.11"
    )


def _host_library() -> Item:
    path = host_library_path()
    if path is not None:
        return Item("host op library", "ok", str(path), ("torch",))
    lacks_compiler = shutil.which("g++") is None
    return Item(
        "host op library",
        "missing",
        "libtrtforge_host.so is not built" + (" and g++ is missing" if lacks_compiler else ""),
        ("torch",),
        "trtforge plugins build",
        "g++" if lacks_compiler else None,
    )


def _program(name: str, package: str, why: str, needed_by: tuple[str, ...]) -> Item:
    path = shutil.which(name)
    if path is not None:
        return Item(name, "ok", path, needed_by)
    status: Status = "missing" if needed_by else "warning"
    return Item(name, status, f"not on PATH; {why}", needed_by, f"apt-get install {package}", package)


def _packages(row: StackRow) -> list[Item]:
    wanted = {
        "torch": "quantize,run",
        "nvidia-modelopt": "quantize",
        "transformers": "quantize",
        "safetensors": "quantize",
        "gguf": "quantize",
        "onnx": "build",
        "onnxruntime": "build",
        "tokenizers": "run",
        "tritonclient": "serve",
        "matplotlib": "report",
    }
    versions = tool_versions(list(wanted))
    known = {item.name: item.version for item in row.components}
    items = []
    for name, extra in wanted.items():
        found, expected = versions[name], known.get(name)
        if found == "absent":
            items.append(Item(name, "missing", "not installed", ("torch",), f"pip install 'trtforge[{extra}]'"))
        elif expected is not None and not _fits(found, expected):
            items.append(
                Item(
                    name,
                    "warning",
                    f"{found}; stack {row.name} is tested with {expected}",
                    ("torch",),
                    f"pip install '{name}{_spec(expected)}'",
                )
            )
        else:
            items.append(Item(name, "ok", found, ("torch",)))
    return items


def _spec(expected: str) -> str:
    if expected[0] in "<>=!~":
        return expected
    return f"=={expected}" if expected.count(".") > 1 else f"~={expected}.0"


def _fits(found: str, expected: str) -> bool:
    try:
        return SpecifierSet(_spec(expected), prereleases=True).contains(Version(Version(found).public))
    except InvalidVersion:
        return False


def _numpy(row: StackRow) -> Item:
    found = tool_versions(["numpy"])["numpy"]
    rule = row.numpy
    if found == "absent":
        return Item("numpy", "missing", "not installed", ("torch",), f"pip install 'numpy{rule or ''}'")
    if rule is None or _fits(found, rule):
        return Item("numpy", "ok", f"{found} (Triton {row.triton}: {rule})", ("torch",))
    return Item(
        "numpy",
        "missing",
        f"{found}; the Python stub of Triton {row.triton} breaks with it, partly in silence",
        ("torch",),
        f"pip install 'numpy{rule}'",
    )


def _server(find_server: Callable[[], str]) -> Item:
    try:
        return Item("Triton server", "ok", find_server(), ("torch",))
    except ForgeError as error:
        remedy = error.remedies[0] if error.remedies else None
        package = None
        if remedy and remedy.startswith("apt-get install "):
            package = remedy.removeprefix("apt-get install ").split()[0]
        return Item("Triton server", "missing", f"{error.code}: {error.message}", ("torch",), remedy, package)


def _shared_memory() -> Item:
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Item("shared memory", "missing", "/dev/shm cannot be written", ("torch",), "mount a tmpfs on /dev/shm")
    free = shutil.disk_usage(folder).free
    if free < _MIN_SHM:
        return Item(
            "shared memory",
            "missing",
            f"{format_size(free)} free in /dev/shm",
            ("torch",),
            "docker run --shm-size=1g, or a larger tmpfs",
        )
    return Item("shared memory", "ok", f"{format_size(free)} free in /dev/shm", ("torch",))


def _port(port: int) -> Item:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Item(
                f"port {port}",
                "warning",
                f"taken ({error.strerror})",
                (),
                "trtforge serve --http-port, --grpc-port, --metrics-port",
            )
    return Item(f"port {port}", "ok", "free")


def _memory(machine: Machine) -> Item:
    text = f"{format_size(machine.memory_available)} of {format_size(machine.memory_total)} free"
    if machine.memory_total < _MIN_MEMORY:
        return Item("memory", "warning", text, ("torch",), f"{format_size(_MIN_MEMORY)} or more for a 135M model")
    return Item("memory", "ok", text, ("torch",))


def _disk(machine: Machine) -> Item:
    text = f"{format_size(machine.disk_free)} free where the store lies"
    if machine.disk_free < _MIN_DISK:
        return Item("disk", "warning", text, ("torch",), "trtforge artifacts gc, or --store on a larger disk")
    return Item("disk", "ok", text, ("torch",))


def _driver() -> Item:
    needed = ("tensorrt", "trtllm-engine", "trtllm-llmapi")
    program = shutil.which("nvidia-smi")
    if program is None:
        return Item("NVIDIA driver", "missing", "nvidia-smi is not on PATH", needed, "install the NVIDIA driver")
    try:
        answer = subprocess.run(
            [program, "--query-gpu=driver_version,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Item("NVIDIA driver", "missing", f"nvidia-smi failed: {error}", needed, "check the NVIDIA driver")
    gpus = "; ".join(line.strip() for line in answer.stdout.splitlines() if line.strip())
    return Item("NVIDIA driver", "ok", f"{gpus} ({', '.join(gpu_architectures())})", needed)


def _library(distribution: str, module: str, needed_by: tuple[str, ...]) -> Item:
    import importlib.util

    version = tool_versions([distribution])[distribution]
    if version != "absent" and importlib.util.find_spec(module) is not None:
        return Item(distribution, "ok", version, needed_by)
    return Item(
        distribution, "missing", "not installed", needed_by, f"pip install {distribution}, or NVIDIA's container"
    )
