"""Known holes of the server and the libraries that load a bundle, by release; rows are data with NVIDIA's bulletins.

Triton has two counts, its own (2.51.0) and the month of NVIDIA's container (24.10); the bulletins use the months, so a
server's version is turned into its month first. A release that the table does not know is counted with the newest one
before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import Field, model_validator

from trtforge.ground.rows import Row, read_table
from trtforge.tables import DAY, LINK, Source, refuse_repeats

_MONTH = r"^[2-9]\d\.(0[1-9]|1[0-2])$"
#: an older month than any: what a server before the first row is counted as
_BEFORE_ALL = "0"
SERVER = "tritonserver"
Product = Literal["tritonserver", "TensorRT-LLM", "TensorRT", "nvidia-modelopt"]


class Release(Row):
    """A container month of Triton and the server version in it."""

    month: str = Field(pattern=_MONTH)
    server: str


class Hole(Row):
    """One hole: the first release without it, and the first with it where that is not the first of all.

    ``eased`` says what our own launch lines do about it; that is no repair.
    """

    id: str = Field(pattern=r"^CVE-\d{4}-\d{4,}$")
    before: str
    since: str | None = None
    score: float = Field(ge=0, le=10, description="CVSS base score, as the bulletin states it")
    what: str
    part: str | None = None
    eased: Literal["stack", "restrictions"] | None = None

    def open_in(self, version: Version) -> bool:
        """Whether a release (Triton: its month) has the hole."""
        return version < Version(self.before) and (self.since is None or version >= Version(self.since))


class Bulletin(Row):
    """One of NVIDIA's security bulletins."""

    number: str
    date: str = Field(pattern=DAY)
    product: Product
    url: str = Field(pattern=LINK)
    holes: tuple[Hole, ...] = Field(min_length=1)


class AdvisoryTable(Row):
    as_of: str = Field(pattern=DAY)
    sources: tuple[Source, ...] = Field(min_length=1)
    releases: tuple[Release, ...] = Field(min_length=1)
    bulletins: tuple[Bulletin, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> AdvisoryTable:
        named = [hole.id for bulletin in self.bulletins for hole in bulletin.holes]
        refuse_repeats(named, "a hole is listed twice")
        months = [Version(row.month) for row in self.releases]
        servers = [Version(row.server) for row in self.releases]
        if months != sorted(set(months)) or servers != sorted(set(servers)):
            raise ValueError("releases are not in order")
        return self


@dataclass(frozen=True)
class Known:
    """A hole that a release has, with the bulletin that says so."""

    product: str
    version: str
    hole: Hole
    bulletin: Bulletin

    def to_json(self) -> dict[str, Any]:
        """The hole as one JSON-able object."""
        return {
            "product": self.product,
            "version": self.version,
            **self.hole.model_dump(exclude={"since", "before"}),
            "fixed_in": self.hole.before,
            "bulletin": self.bulletin.url,
        }


@cache
def advisory_table() -> AdvisoryTable:
    """The validated table (cached)."""
    return read_table(Path(__file__).with_name("advisories.yaml"), AdvisoryTable)


def month_of(version: str, table: AdvisoryTable | None = None) -> str:
    """The container month of a Triton release, given as ``24.10``, ``24.10-py3`` or ``2.51.0``.

    Raises:
        InvalidVersion: this is no version.
    """
    month = re.match(r"[2-9]\d\.(?:0[1-9]|1[0-2])(?![\d.])", version)
    if month is not None:
        return month[0]
    found = Version(version)
    rows = (table or advisory_table()).releases
    return next((row.month for row in reversed(rows) if Version(row.server) <= found), _BEFORE_ALL)


def known_holes(product: str, version: str | None, table: AdvisoryTable | None = None) -> list[Known]:
    """The holes that a release has, the gravest first; none for an unknown product or a version that cannot be read."""
    table = table or advisory_table()
    try:
        counted = Version(month_of(version or "", table) if product == SERVER else version or "")
    except InvalidVersion:
        return []
    found = [
        Known(product, str(version), hole, bulletin)
        for bulletin in table.bulletins
        if bulletin.product == product
        for hole in bulletin.holes
        if hole.open_in(counted)
    ]
    return sorted(found, key=lambda known: (-known.hole.score, known.hole.id))


def summary(known: Sequence[Known], shown: int = 3) -> str:
    """``N known holes, the worst CVE-… (9.8), …; fixed from X on``; empty without holes."""
    if not known:
        return ""
    worst = ", ".join(f"{item.hole.id} ({item.hole.score:g})" for item in known[:shown])
    return f"{len(known)} known hole{'s' if len(known) > 1 else ''}, the worst {worst}; fixed from {fixed_in(known)} on"


def fixed_in(known: Sequence[Known]) -> str:
    """The first release that has none of these holes."""
    return max((item.hole.before for item in known), key=Version)
