"""Errors as part of the product: every refusal carries a stable code and a way out.

Policy: anything a user can cause is a :class:`ForgeError`. It names what was asked, the numbers,
why it cannot work and at least one change that would. Anything else that escapes is a bug and ends
the process with :attr:`ExitCode.INTERNAL`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any


class ExitCode(enum.IntEnum):
    """Process exit codes; part of the command line's public surface."""

    OK = 0
    GATE_FAILED = 1
    BAD_INPUT = 2
    ENVIRONMENT = 3
    INTERNAL = 4
    INTERRUPTED = 130


class ForgeError(Exception):
    """A refusal that the user can act on.

    Args:
        code: stable identifier such as ``TF-SRC-003``; never reused for another meaning.
        message: one sentence that states the fault.
        asked: what the user asked for, as they wrote it.
        numbers: the quantities that decide, by name (JSON-able values).
        why: the reason in one or two sentences.
        remedies: changes that would work, most useful first.
        exit_code: how the process ends when nobody handles the error.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        asked: str | None = None,
        numbers: Mapping[str, Any] | None = None,
        why: str | None = None,
        remedies: Sequence[str] = (),
        exit_code: ExitCode = ExitCode.BAD_INPUT,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.asked = asked
        self.numbers: dict[str, Any] = dict(numbers or {})
        self.why = why
        self.remedies: list[str] = list(remedies)
        self.exit_code = exit_code

    def to_json(self) -> dict[str, Any]:
        """The error as one JSON-able object (the shape that ``--json`` prints)."""
        return {
            "code": self.code,
            "message": self.message,
            "asked": self.asked,
            "numbers": self.numbers,
            "why": self.why,
            "remedies": self.remedies,
            "exit_code": int(self.exit_code),
        }


class EnvironmentLacks(ForgeError):
    """The machine lacks something (exit code 3); the first remedy is what to install."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        details.setdefault("exit_code", ExitCode.ENVIRONMENT)
        super().__init__(code, message, **details)


class GateFailed(ForgeError):
    """A quality or speed gate was missed (exit code 1); artifacts are kept, nothing is published as passed."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        details.setdefault("exit_code", ExitCode.GATE_FAILED)
        super().__init__(code, message, **details)


def interrupted() -> ForgeError:
    """What is said when the user stops a command."""
    return ForgeError(
        "TF-INTERRUPTED",
        "stopped",
        why="The process was interrupted; what was finished is kept.",
        remedies=["run the same command again: it goes on where it stopped"],
        exit_code=ExitCode.INTERRUPTED,
    )
