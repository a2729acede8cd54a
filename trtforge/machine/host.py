"""What the machine is, as far as an artifact can depend on it. Never imports torch.

Used for the stamps of a manifest, for the host part of a key, and for checking a bundle's stamps
against the machine that is about to load it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from trtforge.ground.hashing import hash_file

#: the instruction sets that choose a kernel, as /proc/cpuinfo names them
_ISA_FLAGS = (
    "avx2",
    "f16c",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vbmi",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
HOST_LIBRARY = "libtrtforge_host.so"


@functools.cache
def host_isa() -> tuple[str, ...]:
    """The instruction-set extensions of this machine that kernels choose by, in a fixed order."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            present = set(value.split())
            return tuple(flag for flag in _ISA_FLAGS if flag in present)
    return ()


def host_library_path() -> Path | None:
    """Where the plugins' host library lies in this installation; ``None`` when it is not built.

    ``TRTFORGE_HOST_LIBRARY`` names another file, as it does for the loader.
    """
    named = os.environ.get("TRTFORGE_HOST_LIBRARY")
    if named:
        return Path(named) if Path(named).is_file() else None
    try:
        spec = importlib.util.find_spec("plugins.host")
    except ImportError:
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    candidates = (Path(location) / HOST_LIBRARY for location in locations or ())
    return next((path for path in candidates if path.is_file()), None)


@functools.cache
def _hash_at(path: Path, size: int, mtime_ns: int) -> str:
    return hash_file(path)


def host_library_hash() -> str | None:
    """SHA-256 of the plugins' host library; ``None`` when it is not built."""
    path = host_library_path()
    if path is None:
        return None
    status = path.stat()
    return _hash_at(path, status.st_size, status.st_mtime_ns)


def ask_driver(fields: str) -> list[str]:
    """nvidia-smi's lines for ``--query-gpu=fields``, one a GPU, sizes in MiB; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


@functools.cache
def gpu_architectures() -> tuple[str, ...]:
    """``sm_90`` … of the GPUs that the driver shows, without duplicates; empty without a driver."""
    lines = ask_driver("compute_cap")
    return tuple(sorted({f"sm_{line.strip().replace('.', '')}" for line in lines if line.strip()}))


def python_version() -> str:
    """``3.11``: the part of the version that extension modules depend on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def machine_stamps() -> dict[str, Any]:
    """The stamps that every manifest carries."""
    return {
        "arch": platform.machine(),
        "system": platform.system(),
        "python": python_version(),
        "isa": list(host_isa()),
        "plugin_library_sha256": host_library_hash(),
        "gpu_architectures": list(gpu_architectures()),
    }


def tool_versions(distributions: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Installed versions by distribution name, from metadata (nothing is imported); ``absent`` when not installed."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
