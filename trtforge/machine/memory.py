"""The memory that this process may have: the machine's, or less where a control group says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtforge.machine.control_groups import V2, figure, folders, numbers


@dataclass(frozen=True)
class Memory:
    """Bytes of memory: all that there is for this process, and what of it is free now."""

    total: int
    available: int


def memory(root: Path | None = None, groups: Path | None = None) -> Memory:
    """The memory of this machine under this process's control groups, as it is now.

    A group's page cache that nobody used lately does not count as used: the kernel gives it back before it kills.

    Args:
        root, groups: see :func:`trtforge.machine.control_groups.folders`.
    """
    import psutil

    host = psutil.virtual_memory()
    total, available = int(host.total), int(host.available)
    for version, folder in folders("memory", root, groups):
        if version == V2:
            limit, used, idle = "memory.max", "memory.current", "inactive_file"
        else:
            limit, used, idle = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        limits = numbers(folder / limit)
        if limits and limits[0] >= 0:
            total = min(total, limits[0])
            taken = sum(numbers(folder / used)) - figure(folder / "memory.stat", idle)
            available = min(available, max(0, limits[0] - max(0, taken)))
    return Memory(total, available)
