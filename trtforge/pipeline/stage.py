"""What a stage is: a named function from (inputs, section of the recipe) to a directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Recipe


@dataclass(frozen=True)
class Artifact:
    """A published stage directory: its content key and where it lies."""

    stage: str
    key: str
    path: Path
    manifest: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures that the stage reported (see :class:`StageResult`)."""
        summary: Mapping[str, Any] = self.manifest["summary"]
        return summary


@dataclass(frozen=True)
class GateResult:
    """One gate's verdict, with the figures that decided it.

    ``bound`` is the end of the measured figure's interval that was held against ``limit``; None where the figure itself
    was (manifests of earlier versions have the bound in ``measured``).
    """

    name: str
    passed: bool
    measured: float
    limit: float
    detail: str
    bound: float | None = None

    def figures(self) -> dict[str, float]:
        """The figures as an error's numbers."""
        bound = {} if self.bound is None else {"bound": self.bound}
        return {"measured": self.measured, **bound, "limit": self.limit}


@dataclass
class StageResult:
    """What a stage hands back beside the files that it wrote.

    ``summary`` holds deterministic figures: it is part of the artifact's content hash. Figures that vary
    from run to run (times, rates) go to ``measurements``, and files that hold such figures are named by
    the patterns of ``measured`` (``fnmatch`` over posix paths below ``out``). ``stamps`` are what a
    machine must match to use the artifact.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    gates: list[GateResult] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)
    measured: tuple[str, ...] = ()
    stamps: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageContext:
    """Everything that a stage may use; it reads ``inputs`` and writes below ``out`` only.

    ``scratch`` survives a kill and is the same folder for the same key: a stage may keep resumable
    work there (downloads, finished shards). It is removed once the stage is published.
    """

    recipe: Recipe
    recipe_dir: Path
    section: Mapping[str, Any]
    inputs: Mapping[str, Artifact]
    out: Path
    scratch: Path
    progress: Progress


class Stage(Protocol):
    """A step of the pipeline. Implementations live in ``trtforge/pipeline/stages``, one a module."""

    name: str
    needs: tuple[str, ...]
    #: raised by hand when the stage's meaning changes; part of the key
    code_version: str
    #: distributions whose versions are part of the key
    tools: tuple[str, ...]

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        """The JSON-able part of the recipe (and of outside inputs, such as a source's hash) that decides the result."""

    def asked_for(self, recipe: Recipe) -> bool:
        """Whether the recipe has this stage at all; a run of one that has not goes without it and names no reason."""

    def run(self, context: StageContext) -> StageResult:
        """Do the work; raise :class:`~trtforge.ground.errors.ForgeError` on anything that the user can cause."""


class StageBase(Stage):
    """Defaults for the parts of a stage that most stages leave alone."""

    name: str = ""
    needs: tuple[str, ...] = ()
    code_version: str = "1"
    tools: tuple[str, ...] = ()
    #: the stage copies measured files of its inputs: measured anew, they make it run again under the same key
    carries_measurements: bool = False

    def asked_for(self, recipe: Recipe) -> bool:
        """Every recipe has the stage."""
        return True

    def host_facts(self) -> dict[str, Any]:
        """JSON-able facts of this machine that the result depends on; part of the key."""
        return {}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        """Bytes that the stage is about to write, 0 when unknown; checked against the free space before it runs."""
        return 0
