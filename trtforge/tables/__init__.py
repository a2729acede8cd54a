"""Facts that change with versions, as data rows with a source each; code reads them, never repeats them.

``stack``: which versions belong together, and what was added or removed. ``architectures``: which
precision has a kernel on which GPU architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from trtforge.ground.rows import Row, read_table

LINK = r"^https://\S+$"
DAY = r"^\d{4}-\d{2}-\d{2}$"


def refuse_repeats(names: Sequence[object], message: str) -> None:
    """Raise ``ValueError`` where a name stands twice."""
    if len(set(names)) != len(names):
        raise ValueError(message)


class Source(Row):
    """Where a fact comes from."""

    url: str = Field(pattern=LINK)
    says: str


Probe = Literal["tensorrt", "cudart", "driver", "tensorrt_llm", "tritonserver", "torch", "python", "distribution"]


class Component(Row):
    """One piece of a stack: its version and what matters about it.

    ``version`` is a release (2.13 covers 2.13.1) or a PEP 440 rule. ``probe`` says how the piece that would be
    loaded is asked for its version, ``distribution`` what pip calls it; a piece without a probe cannot be asked.
    ``serving`` marks what a server of a bundle loads: ``verify`` looks at these.
    """

    name: str
    version: str
    note: str = ""
    probe: Probe | None = None
    distribution: str | None = None
    serving: bool = False


class Removed(Row):
    """What a stack no longer has, and what replaces it."""

    target: str
    since: str
    replacement: str
    url: str = Field(pattern=LINK)


class StackRow(Row):
    """Versions that belong together. Rows of a target stand newest first."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    title: str
    targets: tuple[str, ...] = Field(description="Engine targets that this stack builds or runs")
    triton: str | None = Field(description="The Triton release that serves it; null where no one release is tied to it")
    layouts: tuple[str, ...] = Field(description="Triton layouts that this stack serves")
    numpy: str | None = Field(None, description="numpy versions that its Triton Python stub works with (PEP 440)")
    container: str | None = Field(None, description="Image that holds the stack")
    components: tuple[Component, ...]
    removed: tuple[Removed, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = Field(min_length=1)

    def version_of(self, component: str) -> str | None:
        """The version of the piece called ``component``, or None."""
        return next((item.version for item in self.components if item.name == component), None)


class StackTable(Row):
    as_of: str = Field(pattern=DAY)
    rows: tuple[StackRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> StackTable:
        refuse_repeats([row.name for row in self.rows], "stack names repeat")
        return self

    def row(self, name: str) -> StackRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def of(self, target: str) -> list[StackRow]:
        return [row for row in self.rows if target in row.targets]

    def newest(self, target: str) -> StackRow | None:
        """The newest row that has ``target``, or None."""
        return next(iter(self.of(target)), None)


Support = Literal["yes", "no", "weight-only", "disputed"]


class Architecture(Row):
    """One GPU architecture and the precisions that have a kernel on it; a format that is not named is unknown."""

    name: str = Field(pattern=r"^sm_\d{2,3}$")
    title: str
    formats: dict[str, Support]
    kv_cache: dict[str, Support]
    targets: tuple[str, ...] = Field(description="Engine targets that build for it")
    dtypes: dict[str, Support]
    context_fp8: Support = Field(description="Context attention in FP8")
    board_gib: int | None = Field(description="Memory of the largest board; null where it is shared with the host")
    by_target: dict[str, dict[str, Support]] = Field(
        default_factory=dict, description="Formats that one target treats otherwise than ``formats`` says"
    )
    note: str = ""

    def support(self, format: str, target: str) -> Support | None:
        """Whether ``target`` has a kernel for ``format`` here; None when nothing is stated."""
        return self.by_target.get(target, {}).get(format) or self.formats.get(format)


class ArchitectureTable(Row):
    as_of: str = Field(pattern=DAY)
    sources: tuple[Source, ...] = Field(min_length=1)
    rows: tuple[Architecture, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> ArchitectureTable:
        refuse_repeats([row.name for row in self.rows], "architectures repeat")
        return self

    def row(self, name: str) -> Architecture | None:
        return next((row for row in self.rows if row.name == name), None)


@cache
def stack_table() -> StackTable:
    """Versions that belong together."""
    return read_table(Path(__file__).with_name("stack.yaml"), StackTable)


@cache
def architecture_table() -> ArchitectureTable:
    """Precision by GPU architecture."""
    return read_table(Path(__file__).with_name("architectures.yaml"), ArchitectureTable)
