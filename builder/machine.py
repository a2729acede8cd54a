"""What this machine's processor and memory offer, read without torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

#: levels of CPU capability, best first: name and the /proc/cpuinfo flags that it needs
CPU_CAPABILITIES: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx", frozenset({"amx_tile", "amx_bf16", "avx512_bf16"})),
    ("avx512_bf16", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"})),
    ("avx512", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})),
    ("avx2", frozenset({"avx2", "fma", "f16c"})),
    ("plain", frozenset()),
)


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's feature flags as Linux names them; empty where the file has none (other architectures)."""
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "flags":
                return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as Linux says it; the machine's architecture where there is none."""
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.machine()


def machine_facts() -> dict[str, str | int]:
    """What a reader of measured times has to know: processor, its level, logical processors, bytes of memory."""
    return {
        "cpu": cpu_name(),
        "capability": cpu_capability(),
        "cpus": os.cpu_count() or 1,
        "memory": int(psutil.virtual_memory().total),
    }


def cpu_capability(flags: frozenset[str] | None = None) -> str:
    """The best level of :data:`CPU_CAPABILITIES` that the flags (default: this machine's) cover."""
    have = cpu_flags() if flags is None else flags
    return next(name for name, needed in CPU_CAPABILITIES if needed <= have)


def free_memory() -> int:
    """Bytes that this process may still use: the machine's available memory, or less under a cgroup limit."""
    available = int(psutil.virtual_memory().available)
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text(encoding="utf-8").strip()
        used = int((root / "memory.current").read_text(encoding="utf-8"))
        if limit != "max":
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return available
