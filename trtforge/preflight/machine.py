"""What preflight asks of the machine: memory, disk, offline switches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Bytes of memory and disk, and whether data sets may be fetched."""

    memory_total: int
    memory_available: int
    disk_free: int
    offline: bool
    cores: int


def probe(store: Path) -> Machine:
    """The machine as it is now; the disk is the one that holds ``store`` (or would)."""
    import psutil

    memory = psutil.virtual_memory()
    folder = store.absolute()
    while not os.path.exists(folder) and folder != folder.parent:  # noqa: PTH110 (unlike Path's it never raises)
        folder = folder.parent
    return Machine(
        memory_total=min(int(memory.total), _container_limit() or int(memory.total)),
        memory_available=int(memory.available),
        disk_free=int(psutil.disk_usage(str(folder)).free),
        offline=any(os.environ.get(name, "0") not in ("", "0") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")),
        cores=os.cpu_count() or 1,
    )


def _container_limit() -> int | None:
    """The memory limit of this control group in bytes, or None when there is none."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
