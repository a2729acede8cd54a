"""Progress reporting that stages receive; the console decides how it looks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a long-running function calls to say how far it is."""

    def start(self, description: str, total: float | None = None) -> None:
        """Begin a step: ``description`` says what is being done, ``total`` its size (None: unknown)."""

    def advance(self, amount: float = 1.0) -> None:
        """Report ``amount`` more of the current step's total as done."""

    def note(self, text: str) -> None:
        """A short line worth keeping in the run's log."""


class SilentProgress:
    """Progress that goes nowhere: the default for library calls and tests."""

    def start(self, description: str, total: float | None = None) -> None:
        return None

    def advance(self, amount: float = 1.0) -> None:
        return None

    def note(self, text: str) -> None:
        return None
