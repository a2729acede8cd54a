"""What is wrong with a drafter, each with its code: a refusal when it is an error, a line of the report otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class DraftFinding:
    """One thing that is wrong: ``error`` stops a conversion and a recipe, ``warning`` is said."""

    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    numbers: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None
    remedies: Sequence[str] = ()

    def refusal(self, asked: str) -> ForgeError:
        """The finding as the error that ends a command."""
        return ForgeError(
            self.code, self.message, asked=asked, numbers=self.numbers, why=self.why, remedies=self.remedies
        )

    def to_json(self) -> dict[str, Any]:
        """The finding as one JSON-able object."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "numbers": dict(self.numbers),
            "why": self.why,
            "remedies": list(self.remedies),
        }
