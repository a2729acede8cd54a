"""The machine as a recipe meets it: the record, the store's disk, installed engines, offline switches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from trtforge.ground.files import free_bytes, nearest_existing, shares_blocks
from trtforge.machine.record import Machine, this_machine
from trtforge.machine.software import tool_versions

#: distributions whose version decides what can be built here
_TOOLS = ("tensorrt", "tensorrt-llm", "tensorrt-rtx", "datasets", "lm-eval", "nvidia-modelopt", "transformers")


@dataclass(frozen=True)
class Lack:
    """Something that a build needs and that is not here: its name, what was found, what brings it."""

    name: str
    detail: str
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True)
class Surroundings(Machine):
    """A machine, what is installed on it, and what a run may do there.

    Attributes:
        disk_free: bytes that may be written where the store lies.
        copies_share: copies of files there take no space (reflinks: btrfs, xfs).
        offline: data sets and models of the hub may not be fetched.
        versions: of the distributions that decide what can be built, where installed.
        hub_token: huggingface_hub would find one.
        lacks: what the build of the recipe's target misses here.
    """

    disk_free: int
    copies_share: bool = False
    offline: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    hub_token: bool = False
    lacks: tuple[Lack, ...] = ()


def look(store: Path) -> Surroundings:
    """This machine as it is now; the disk is the one that holds ``store`` (or would)."""
    here = this_machine()
    return Surroundings(
        **{item.name: getattr(here, item.name) for item in fields(here)},
        disk_free=free_bytes(store.absolute()),
        copies_share=_copies_share(nearest_existing(store.absolute())),
        offline=any(os.environ.get(name, "0") not in ("", "0") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")),
        versions={name: version for name, version in tool_versions(_TOOLS).items() if version != "absent"},
        hub_token=_has_hub_token(),
    )


def _copies_share(folder: Path) -> bool:
    """Whether copies share blocks, as far as this user can try it out: in a folder that takes no file, they do not."""
    try:
        return shares_blocks(folder)
    except OSError:
        return False


def _has_hub_token() -> bool:
    """Whether huggingface_hub would find a token; the token itself is not read."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")  # noqa: PTH118
    return os.path.isfile(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or f"{home}/token"))  # noqa: PTH111, PTH113
