"""What a stage is: a named function from (inputs, section of the recipe) to a directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult


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
    #: what the same stage made before, by the same code, tools and machine: for stages that keep samples
    earlier: tuple[Artifact, ...] = ()


class Stage(ABC):
    """A step of the pipeline. Implementations live in ``trtforge/pipeline/stages``, one a module."""

    name: str = ""
    needs: tuple[str, ...] = ()
    #: raised by hand when the stage's meaning changes; part of the key
    code_version: str = "1"
    #: distributions whose versions are part of the key
    tools: tuple[str, ...] = ()
    #: the stage copies measured files of its inputs: measured anew, they make it run again under the same key
    carries_measurements: bool = False
    #: the stage takes samples over from its earlier artifacts, so that nothing is measured twice
    reuses_samples: bool = False

    @abstractmethod
    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        """The JSON-able part of the recipe (and of outside inputs, such as a source's hash) that decides the result."""

    @abstractmethod
    def run(self, context: StageContext) -> StageResult:
        """Do the work; raise :class:`~trtforge.ground.errors.ForgeError` on anything that the user can cause."""

    def asked_for(self, recipe: Recipe) -> bool:
        """Whether the recipe has this stage at all; a run of one that has not goes without it and names no reason."""
        return True

    def host_facts(self) -> dict[str, Any]:
        """JSON-able facts of this machine that the result depends on; part of the key."""
        return {}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        """Bytes that the stage is about to write, 0 when unknown; checked against the free space before it runs."""
        return 0
