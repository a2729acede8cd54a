"""The hardware table: GPUs and links with what decides memory, speed and communication.

Policy: a figure is the vendor's dense one, with its source; what a GPU cannot compute in a format is
absent, never zero. Plans count with the memory that a program sees, not with the capacity on the box.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from trtforge.formats.table import ComputeFormat
from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import Row, read_table
from trtforge.tables import Source

_TABLE = Path(__file__).with_name("hardware.yaml")
_GB = 1e9


class Gpu(Row):
    """One GPU product. ``dense_tflops`` has no key for a format that its tensor cores do not execute."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    aliases: tuple[str, ...] = ()
    reported: tuple[str, ...] = Field((), description="Names that nvidia-smi and torch print for it")
    arch: str = Field(pattern=r"^sm_\d{2,3}$")
    memory_gib: float = Field(gt=0)
    visible_mib: int = Field(gt=0)
    bandwidth_gbs: float = Field(gt=0)
    dense_tflops: dict[ComputeFormat, float]
    nvlink_gbs: float | None
    pcie_gbs: float = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    nvlink_domain: int = Field(gt=0, description="GPUs that NVLink joins; 1 means none")
    power_watts: float = Field(gt=0)
    interconnect: str
    sources: tuple[Source, ...] = Field(min_length=1)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it goes by, in the form that is compared."""
        return (self.name, *self.aliases, *dict.fromkeys(_plain(name) for name in self.reported if not self._has(name)))

    def _has(self, reported: str) -> bool:
        return _plain(reported) in (self.name, *self.aliases)

    @property
    def visible_bytes(self) -> int:
        """Memory that the driver reports as total; plans count with this."""
        return self.visible_mib * 2**20

    @property
    def bandwidth(self) -> float:
        """Bytes a second between the GPU and its memory, the data sheet's peak."""
        return self.bandwidth_gbs * _GB

    @property
    def fast_domain(self) -> int:
        """GPUs that tensor parallelism may span: the NVLink domain or the node, whichever is larger."""
        return max(self.nvlink_domain, self.gpus_per_node)

    def flops(self, format: ComputeFormat) -> float | None:
        """Dense operations a second of the tensor cores in ``format``; None when they cannot."""
        rate = self.dense_tflops.get(format)
        return None if rate is None else rate * 1e12

    def executes(self, format: ComputeFormat) -> bool:
        """Whether the tensor cores have the format: FP8 from sm_89 on, FP4 from Blackwell on."""
        return format in self.dense_tflops


class Link(Row):
    """A connection between GPUs or nodes."""

    name: str
    title: str
    bandwidth_gbs: float = Field(gt=0)
    directions: Literal[1, 2]
    latency_us: float = Field(ge=0)
    source: str = Field(pattern=r"^https://\S+$")

    @property
    def bandwidth(self) -> float:
        """Bytes a second as the data sheet prints it (NVLink: both directions together)."""
        return self.bandwidth_gbs * _GB

    @property
    def one_way(self) -> float:
        """Bytes a second that one direction carries: what a collective can use."""
        return self.bandwidth_gbs * _GB / self.directions

    @property
    def latency(self) -> float:
        """Seconds of one message."""
        return self.latency_us * 1e-6


class HardwareTable(Row):
    """The whole table; ``as_of`` is the day it was checked."""

    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    gpus: tuple[Gpu, ...] = Field(min_length=1)
    links: tuple[Link, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> HardwareTable:
        names = [name for row in self.gpus for name in row.names]
        links = [row.name for row in self.links]
        if len(set(names)) != len(names) or len(set(links)) != len(links):
            raise ValueError("names repeat in the hardware table")
        return self


@cache
def load_hardware() -> HardwareTable:
    """The validated table (cached)."""
    return read_table(_TABLE, HardwareTable)


def gpu(name: str) -> Gpu:
    """The GPU called ``name``, by an alias, or as nvidia-smi prints it; in any case, ``_`` or blank for ``-``.

    Raises:
        ForgeError: ``TF-PLN-001`` no such GPU, with the nearest names.
    """
    known = {alias: row for row in load_hardware().gpus for alias in row.names}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    raise _unknown("TF-PLN-001", "GPU", "--gpu", name, known, [row.name for row in load_hardware().gpus])


def link(name: str) -> Link:
    """The link called ``name`` (``nvlink4``, ``pcie5``, ``ib-ndr`` …).

    Raises:
        ForgeError: ``TF-PLN-002`` no such link, with the nearest names.
    """
    known = {row.name: row for row in load_hardware().links}
    wanted = _plain(name)
    if wanted in known:
        return known[wanted]
    raise _unknown("TF-PLN-002", "link", "--network", name, known, list(known))


def _plain(name: str) -> str:
    text = "-".join(name.strip().lower().replace("_", "-").split())
    return text.removeprefix("nvidia-")


def _unknown(
    code: str, kind: str, option: str, name: str, known: dict[str, Gpu] | dict[str, Link], listed: list[str]
) -> ForgeError:
    import difflib

    near = list(dict.fromkeys(known[alias].name for alias in difflib.get_close_matches(_plain(name), known, 4, 0.4)))
    return ForgeError(
        code,
        f"no {kind} called {name} is in the hardware table",
        asked=f"{option} {name}",
        numbers={"known": listed},
        why="A plan needs the memory, bandwidth and throughput of the hardware, with a source.",
        remedies=[f"{option} {row}" for row in near or listed],
    )
