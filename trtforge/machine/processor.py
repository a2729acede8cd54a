"""The processor: its name, its instruction sets, and how many cores this process may use."""

from __future__ import annotations

import functools
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from trtforge.machine.control_groups import V2, folders, numbers

#: the instruction sets that choose a kernel, as /proc/cpuinfo names them
ISA_FLAGS = (
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
#: levels of CPU capability, best first: name and the flags that it needs
CPU_CAPABILITIES: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx", frozenset({"amx_tile", "amx_bf16", "avx512_bf16"})),
    ("avx512_bf16", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"})),
    ("avx512", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})),
    ("avx2", frozenset({"avx2", "fma", "f16c"})),
    ("plain", frozenset()),
)
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Processor:
    """A processor: its name, and its feature flags as Linux names them (none where Linux says none)."""

    name: str
    flags: frozenset[str]

    @property
    def isa(self) -> tuple[str, ...]:
        """The instruction sets of :data:`ISA_FLAGS` that it has, in that order."""
        return tuple(flag for flag in ISA_FLAGS if flag in self.flags)

    @property
    def capability(self) -> str:
        """The best level of :data:`CPU_CAPABILITIES` that its flags cover."""
        return next(name for name, needed in CPU_CAPABILITIES if needed <= self.flags)


@functools.cache
def processor(cpuinfo: Path = _CPUINFO) -> Processor:
    """This machine's processor; named by its architecture where the file has no name (ARM)."""
    said: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            said.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    flags = said.get("flags", said.get("Features", ""))
    return Processor(said.get("model name") or platform.machine(), frozenset(flags.split()))


def cores() -> int:
    """Logical processors that this process may use at once: by its affinity and its control groups' quotas."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([found, *(math.ceil(quota) for quota in quotas())]))


def quotas(root: Path | None = None, groups: Path | None = None) -> list[float]:
    """Processors' worth of time that each control group above this process grants; none without a limit."""
    found = []
    for version, folder in folders("cpu", root, groups):
        if version == V2:
            values = numbers(folder / "cpu.max")
        else:
            values = [*numbers(folder / "cpu.cfs_quota_us"), *numbers(folder / "cpu.cfs_period_us")]
        if len(values) == 2 and values[0] > 0 and values[1] > 0:
            found.append(values[0] / values[1])
    return found
