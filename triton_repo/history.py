"""What changed between versions of ``inflight_batcher_llm``, as data: ``tables/history.yaml``.

Versions are compared as they stand in the table; one between two of them counts as the lower (1.0.3 as 1.0).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict, Field, model_validator

from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import Row, read_table

_FILE = Path(__file__).parent / "tables" / "history.yaml"
ChangeKind = Literal["renamed", "removed", "ignored", "default", "values", "tensor_renamed"]


class _Row(Row):
    model_config = ConfigDict(populate_by_name=True)


class Change(_Row):
    """One change of meaning.

    Attributes:
        version: the first version that has it.
        name: the parameter or tensor as it was called before.
        to: the new name, or the new default.
        before: the old default.
        replace: the value that a renamed parameter takes, where the old one no longer fits.
        says: what it means for who moves over it.
    """

    version: str
    model: str
    kind: ChangeKind
    name: str
    to: str | None = None
    before: str | None = Field(None, alias="from")
    added: tuple[str, ...] = ()
    replace: str | None = None
    says: str


class Counterpart(_Row):
    """How llmapi says a parameter (``to``, a dotted key of model.yaml), or why it has none."""

    to: str | None = None
    as_: Literal["integer", "integers", "number", "boolean", "text", "upper", "list"] | None = Field(None, alias="as")
    why: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Counterpart:
        if (self.to is None) == (self.why is None) or (self.to is None) != (self.as_ is None):
            raise ValueError("a counterpart has `to` with `as`, or `why`")
        return self


class Successor(_Row):
    """The layout that follows, its first version, and the first number that is no version of TensorRT-LLM yet."""

    layout: str
    since: str
    below: str
    url: str


class History(_Row):
    """The whole table."""

    as_of: str
    layout: str
    versions: tuple[str, ...]
    successor: Successor
    source: str
    code: str
    added: dict[str, dict[str, tuple[str, ...]]]
    changes: tuple[Change, ...]
    llmapi: dict[str, Counterpart]

    @model_validator(mode="after")
    def _known(self) -> History:
        for version in (*self.added, *(change.version for change in self.changes)):
            if version not in self.versions:
                raise ValueError(f"version {version} is not listed")
        return self

    def index(self, version: str) -> int:
        """Where ``version`` stands.

        Raises:
            ForgeError: TF-TRI-240 for what is no version or lies outside the table.
        """
        try:
            asked = Version(version.removeprefix("v"))
        except InvalidVersion:
            raise self._unknown(version) from None
        below = [i for i, known in enumerate(self.versions) if Version(known) <= asked]
        if not below or self.is_llmapi(version):
            raise self._unknown(version)
        return below[-1]

    def is_llmapi(self, version: str) -> bool:
        """Whether the version has the llmapi layout only."""
        try:
            asked = Version(version.removeprefix("v"))
        except InvalidVersion:
            raise self._unknown(version) from None
        if asked >= Version(self.successor.below):
            raise self._unknown(version)
        return asked >= Version(self.successor.since + ".dev0")

    def between(self, old: str, new: str) -> list[Change]:
        """The changes that a move from ``old`` to a later ``new`` crosses, oldest first."""
        low, high = self.index(old), self.index(new)
        found = [change for change in self.changes if low < self.versions.index(change.version) <= high]
        return sorted(found, key=lambda change: self.versions.index(change.version))

    def since(self, model: str, name: str) -> str | None:
        """The version that added a parameter; None when it was not added later."""
        for version, models in self.added.items():
            if name in models.get(model, ()):
                return version
        return None

    def old_names(self, model: str) -> dict[str, Change]:
        """Parameters of earlier versions that the last one does not read, by name."""
        return {
            change.name: change
            for change in self.changes
            if change.model == model and change.kind in ("renamed", "removed", "ignored")
        }

    def link(self, version: str) -> str:
        """Where the version's template can be read."""
        full = version if version.count(".") == 2 else f"{version}.0"
        return self.source.format(version=full)

    def _unknown(self, version: str) -> ForgeError:
        return ForgeError(
            "TF-TRI-240",
            f"{version} is no version of the TensorRT-LLM backend that is known here",
            asked=version,
            numbers={"first": self.versions[0], "last_with_engines": self.versions[-1]},
            why="Versions are those of TensorRT-LLM (0.19, 1.2.1), not of Triton's containers (25.12).",
            remedies=[f"--to {self.versions[-1]}", f"--to {self.successor.since} (layout {self.successor.layout})"],
        )


@cache
def load_history() -> History:
    """The validated table (cached)."""
    return read_table(_FILE, History)
