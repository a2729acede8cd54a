"""What a run hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtforge.store.artifact import Artifact
from trtforge.store.quarantine import TakenOut

Status = Literal["cached", "ran", "left out", "failed"]


@dataclass(frozen=True)
class StageOutcome:
    """How one stage of a run ended; ``seconds`` is the wall time of this run, ``reasons`` why it ran."""

    stage: str
    status: Status
    seconds: float
    artifact: Artifact | None
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The outcome as a JSON-able object."""
        return {
            "stage": self.stage,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "key": self.artifact.key if self.artifact else None,
            "content_hash": self.artifact.manifest["content_hash"] if self.artifact else None,
            "path": str(self.artifact.path) if self.artifact else None,
            "summary": dict(self.artifact.summary) if self.artifact else None,
            "measurements": self.artifact.manifest.get("measurements") if self.artifact else None,
            "gates": self.artifact.manifest.get("gates") if self.artifact else None,
            "reasons": list(self.reasons),
        }


@dataclass
class RunResult:
    """A whole run: every stage's outcome in order, the log file, and the bundle when there is one."""

    recipe: str
    outcomes: list[StageOutcome] = field(default_factory=list)
    seconds: float = 0.0
    log: Path | None = None
    bundle: Path | None = None
    link: Path | None = None
    #: the bundle that the link led to before, when it was another one
    moved_from: Path | None = None
    #: damaged artifacts and what was made of them, as this run took them out of use
    quarantined: list[TakenOut] = field(default_factory=list)

    def artifact(self, stage: str) -> Artifact:
        """The artifact of a stage of this run; ``KeyError`` when the run did not get there."""
        for outcome in self.outcomes:
            if outcome.stage == stage and outcome.artifact is not None:
                return outcome.artifact
        raise KeyError(stage)

    @property
    def unseen_gates(self) -> list[str]:
        """Gates of the bundle that had no verdict, because a stage did not run for its target."""
        made = next((item.artifact for item in self.outcomes if item.stage == "bundle" and item.artifact), None)
        absent = made.summary.get("not_run", {}) if made is not None else {}
        return [gate for reason in absent.values() for gate in reason["gates"]]

    @property
    def verdict(self) -> Literal["passed", "incomplete"] | None:
        """Of a run to its bundle; None when it ended before (a missed gate is an error, and no result)."""
        if self.bundle is None:
            return None
        return "incomplete" if self.unseen_gates else "passed"

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON-able object."""
        return {
            "recipe": self.recipe,
            "verdict": self.verdict,
            "gates_without_verdict": self.unseen_gates,
            "seconds": round(self.seconds, 3),
            "log": str(self.log) if self.log else None,
            "bundle": str(self.bundle) if self.bundle else None,
            "link": str(self.link) if self.link else None,
            "moved_from": str(self.moved_from) if self.moved_from else None,
            "quarantined": [item.to_json() for item in self.quarantined],
            "stages": [outcome.to_json() for outcome in self.outcomes],
        }
