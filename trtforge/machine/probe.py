"""What is asked of the machine before a build: memory, disk, GPUs, installed engines, offline switches."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtforge.machine.host import ask_driver

#: distributions whose version decides what can be built here
_TOOLS = ("tensorrt", "tensorrt-llm", "tensorrt-rtx", "datasets", "nvidia-modelopt", "transformers")


@dataclass(frozen=True)
class Gpu:
    """A visible GPU: product name, bytes of memory, architecture such as ``sm_90``."""

    name: str
    memory: int
    architecture: str


@dataclass(frozen=True)
class Lack:
    """Something that a build needs and that is not here: its name, what was found, what brings it."""

    name: str
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Machine:
    """Bytes of memory and disk, GPUs, installed versions, and whether data sets may be fetched.

    ``lacks`` is what the build of the recipe's target misses here.
    """

    memory_total: int
    memory_available: int
    disk_free: int
    offline: bool
    cores: int
    gpus: tuple[Gpu, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    hub_token: bool = False
    lacks: tuple[Lack, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures of the visible GPUs, without duplicates."""
        return tuple(sorted({gpu.architecture for gpu in self.gpus}))


def probe(store: Path) -> Machine:
    """The machine as it is now; the disk is the one that holds ``store`` (or would)."""
    import psutil

    from trtforge.machine.host import tool_versions

    memory = psutil.virtual_memory()
    folder = store.absolute()
    while not os.path.exists(folder) and folder != folder.parent:  # noqa: PTH110 (unlike Path's it never raises)
        folder = folder.parent
    versions = {name: version for name, version in tool_versions(_TOOLS).items() if version != "absent"}
    return Machine(
        memory_total=min(int(memory.total), _container_limit() or int(memory.total)),
        memory_available=int(memory.available),
        disk_free=int(psutil.disk_usage(str(folder)).free),
        offline=any(os.environ.get(name, "0") not in ("", "0") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")),
        cores=os.cpu_count() or 1,
        gpus=visible(all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")),
        versions=versions,
        hub_token=_has_hub_token(),
    )


def _has_hub_token() -> bool:
    """Whether huggingface_hub would find a token; the token itself is not read."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")  # noqa: PTH118
    return os.path.isfile(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or f"{home}/token"))  # noqa: PTH111, PTH113


@functools.cache
def all_gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver shows, in its order; empty without a driver."""
    import psutil

    return parse_gpus("\n".join(ask_driver("name,memory.total,compute_cap")), int(psutil.virtual_memory().total))


def parse_gpus(text: str, shared: int = 0) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's ``name, MiB, compute capability`` lines; lines that do not fit are left out.

    ``shared`` are the host's bytes: a GPU that shares them (GB10) has no memory of its own to print, only "[N/A]".
    """
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) != 3 or not parts[2].replace(".", "").isdigit():
            continue
        memory = int(parts[1]) * 2**20 if parts[1].isdigit() else shared if "N/A" in parts[1] else 0
        if memory:
            found.append(Gpu(parts[0], memory, f"sm_{parts[2].replace('.', '')}"))
    return tuple(found)


def visible(gpus: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves; like CUDA, a list ends at its first index that does not exist.

    Identifiers instead of indices cannot be told apart here, so each is taken for one of the GPUs.
    """
    if setting is None:
        return gpus
    chosen: list[Gpu] = []
    for position, item in enumerate(part.strip() for part in setting.split(",")):
        if item.lstrip("-").isdigit():
            if not 0 <= int(item) < len(gpus):
                break
            chosen.append(gpus[int(item)])
        elif item.startswith(("GPU-", "MIG-")) and position < len(gpus):
            chosen.append(gpus[position])
        else:
            break
    return tuple(chosen)


def _container_limit() -> int | None:
    """The memory limit of this control group in bytes, or None when there is none."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
