"""What a run tells the outside while it runs; the console implements it, tests and libraries may not care."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtforge.ground.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from trtforge.pipeline.result import StageOutcome


class Observer:
    """Receives a run's events, in order, from the thread that runs it; this one ignores them."""

    def stage_started(self, stage: str, position: int, total: int) -> None:
        """A stage is about to be looked up or run; ``position`` counts from 1."""

    def stage_finished(self, outcome: StageOutcome) -> None:
        """A stage ended: cached, ran or failed."""

    def progress(self, stage: str) -> Progress:
        """Where the work of ``stage`` reports its progress; asked for only when the stage really runs."""
        return SilentProgress()

    def message(self, text: str) -> None:
        """A sentence that the user should see: waiting for another run, a damaged artifact."""
