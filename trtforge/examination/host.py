"""The host's part: Python, packages, compilers, memory, disk, shared memory, ports, the Triton server."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from trtforge.examination.items import ALL, ANYWHERE, GRAPHS, OWN, Item, Status
from trtforge.ground.errors import ForgeError
from trtforge.ground.units import format_size
from trtforge.machine.record import Machine
from trtforge.machine.software import libc, tool_versions
from trtforge.native.host_library import host_library_path
from trtforge.preflight.surroundings import Surroundings
from trtforge.stack.check import fits
from trtforge.tables import StackRow

_MIN_SHM = 64 * 2**20
_MIN_DISK = 4 * 2**30
_MIN_MEMORY = 4 * 2**30
#: distribution → the extra that brings it, the targets that need it to build, and to run
_PACKAGES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "torch": ("quantize,run", ALL, ANYWHERE),
    "nvidia-modelopt": ("quantize", ALL, ()),
    "transformers": ("quantize", ALL, ()),
    "safetensors": ("quantize", ALL, ANYWHERE),
    "gguf": ("quantize", ALL, ()),
    "onnx": ("build", GRAPHS, ANYWHERE),
    "onnxruntime": ("build", GRAPHS, ()),
    "tokenizers": ("run", ALL, ANYWHERE),
    "tritonclient": ("serve", (), OWN),
    "matplotlib": ("report", ALL, ()),
}


def python() -> Item:
    """The interpreter: its minor version decides which wheels and which Triton stub fit."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        return Item("python", "ok", f"{version} ({sys.executable}), {libc() or 'unknown C library'}", ALL, ANYWHERE)
    detail = f"{version}; 3.11 or 3.12 is needed"
    return Item("python", "missing", detail, ALL, ANYWHERE, "use Python 3.11 or 3.12", "python3.11")


def host_library() -> Item:
    """The op library of the torch target."""
    path = host_library_path()
    if path is not None:
        return Item("host op library", "ok", str(path), ANYWHERE, ANYWHERE)
    lacks = shutil.which("g++") is None
    detail = "libtrtforge_host.so is not built" + (" and g++ is missing" if lacks else "")
    package = "g++" if lacks else None
    return Item("host op library", "missing", detail, ANYWHERE, ANYWHERE, "trtforge plugins build", package)


def program(name: str, package: str, why: str, builds: tuple[str, ...] = ()) -> Item:
    """A program on PATH; one that no target needs is a warning only."""
    path = shutil.which(name)
    if path is not None:
        return Item(name, "ok", path, builds)
    status: Status = "missing" if builds else "warning"
    return Item(name, status, f"not on PATH; {why}", builds, (), f"apt-get install {package}", package)


def packages(row: StackRow) -> list[Item]:
    """Python packages against the versions of the stack that runs here."""
    versions = tool_versions(list(_PACKAGES))
    known = {item.name: item.version for item in row.components}
    items = []
    for name, (extra, builds, runs) in _PACKAGES.items():
        found, expected = versions[name], known.get(name)
        if found == "absent":
            remedy = f"pip install 'trtforge[{extra}]'"
            items.append(Item(name, "missing", "not installed", builds, runs, remedy))
        elif expected is not None and not fits(expected, found):
            detail = f"{found}; stack {row.name} is tested with {expected}"
            items.append(Item(name, "warning", detail, builds, runs, f"pip install '{name}{specifier(expected)}'"))
        else:
            items.append(Item(name, "ok", found, builds, runs))
    return items


def specifier(expected: str) -> str:
    """A table's version as a PEP 440 rule: a release covers its patches, a rule is itself."""
    if expected[0] in "<>=!~":
        return expected
    return f"=={expected}" if expected.count(".") > 1 else f"~={expected}.0"


def numpy(row: StackRow) -> Item:
    """numpy against what the server's Python stub works with."""
    found, rule = tool_versions(["numpy"])["numpy"], row.numpy
    if found == "absent":
        return Item("numpy", "missing", "not installed", ALL, ANYWHERE, f"pip install 'numpy{rule or ''}'")
    if rule is None or fits(rule, found):
        return Item("numpy", "ok", f"{found} (Triton {row.triton}: {rule})", ALL, ANYWHERE)
    detail = f"{found}; the Python stub of Triton {row.triton} breaks with it, partly in silence"
    return Item("numpy", "missing", detail, (), ANYWHERE, f"pip install 'numpy{rule}'")


def server(find_server: Callable[[], tuple[str | None, str]]) -> tuple[Item, str | None]:
    """The Triton server that ``trtforge serve`` would start, and its version."""
    runs = OWN
    try:
        version, place = find_server()
        return Item("Triton server", "ok", f"{version or 'unknown version'} from {place}", (), runs), version
    except ForgeError as error:
        remedy = error.remedies[0] if error.remedies else None
        package = None
        if remedy and remedy.startswith("apt-get install "):
            package = remedy.removeprefix("apt-get install ").split()[0]
        return Item("Triton server", "missing", f"{error.code}: {error.message}", (), runs, remedy, package), None


def shared_memory() -> Item:
    """/dev/shm: the server talks to its Python models, and ranks to each other, through it."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Item("shared memory", "missing", "/dev/shm cannot be written", (), ALL, "mount a tmpfs on /dev/shm")
    free = shutil.disk_usage(folder).free
    if free < _MIN_SHM:
        remedy = "docker run --shm-size=1g, or a larger tmpfs"
        return Item("shared memory", "missing", f"{format_size(free)} free in /dev/shm", (), ALL, remedy)
    return Item("shared memory", "ok", f"{format_size(free)} free in /dev/shm", (), ALL)


def port(number: int) -> Item:
    """Whether a port that ``trtforge serve`` takes by default is free on the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", number))
        except OSError as error:
            remedy = "trtforge serve --http-port, --grpc-port, --metrics-port"
            return Item(f"port {number}", "warning", f"taken ({error.strerror})", remedy=remedy)
    return Item(f"port {number}", "ok", "free")


def memory(machine: Machine) -> Item:
    """Memory of the host."""
    text = f"{format_size(machine.memory_available)} of {format_size(machine.memory_total)} free"
    if machine.memory_total < _MIN_MEMORY:
        return Item("memory", "warning", text, ALL, (), f"{format_size(_MIN_MEMORY)} or more for a 135M model")
    return Item("memory", "ok", text, ALL)


def disk(machine: Surroundings) -> Item:
    """Disk where the store lies."""
    text = f"{format_size(machine.disk_free)} free where the store lies"
    if machine.disk_free < _MIN_DISK:
        return Item("disk", "warning", text, ALL, (), "trtforge artifacts gc, or --store on a larger disk")
    return Item("disk", "ok", text, ALL)


def processor(machine: Machine) -> Item:
    """Cores and the vector extensions that kernels choose by."""
    return Item(
        "processor", "ok", f"{machine.cores} cores, {' '.join(machine.processor.isa) or 'no vector extensions known'}"
    )
