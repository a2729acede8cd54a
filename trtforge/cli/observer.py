"""A run's events on the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtforge.ground.console import Console, StageProgress
from trtforge.ground.progress import Progress
from trtforge.pipeline.observer import Observer

if TYPE_CHECKING:
    from trtforge.pipeline.result import StageOutcome


class ConsoleObserver(Observer):
    """Shows each stage's progress and how it ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._current: StageProgress | None = None
        #: stages that a first pass has shown; that they are cached now is no news
        self.seen: set[str] = set()

    def stage_finished(self, outcome: StageOutcome) -> None:
        """Close the stage's bar, or say that nothing had to run."""
        if self._current is None and outcome.status == "cached" and outcome.stage in self.seen:
            return
        progress = self._current or self._console.progress(outcome.stage)
        self._current = None
        progress.close(
            {"ran": "done", "left out": "left out, as the target has it"}.get(outcome.status, outcome.status)
        )

    def progress(self, stage: str) -> Progress:
        """The bar of a stage that runs."""
        self._current = self._console.progress(stage)
        return self._current

    def message(self, text: str) -> None:
        """A sentence beside the bar."""
        if self._current is not None:
            self._current.say(text)
        else:
            self._console.warning(text)

    def close(self) -> None:
        """Take down a bar that an error left behind."""
        if self._current is not None:
            self._current.close("failed")
            self._current = None
