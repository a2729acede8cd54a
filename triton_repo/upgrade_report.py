"""What an upgrade reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from triton_repo.lint.hits import Finding


@dataclass(frozen=True)
class Step:
    """One thing that the upgrade did, or that is left to do."""

    model: str
    action: str  # renamed | removed | kept | set | rewritten | left | copied
    what: str
    meaning: str

    def to_json(self) -> dict[str, Any]:
        """The step as one JSON-able object."""
        return dict(self.__dict__)


@dataclass
class Upgrade:
    """What was done, what is left to a person, and what lint says of the result."""

    layout: str
    old_version: str
    new_version: str
    done: list[Step] = field(default_factory=list)
    left: list[Step] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()

    def say(self, model: str, action: str, what: str, meaning: str) -> None:
        """Note one thing: ``left`` for a person to do, anything else done."""
        (self.left if action == "left" else self.done).append(Step(model, action, what, meaning))

    @property
    def passed(self) -> bool:
        """Whether lint finds no error in the result."""
        return not any(finding.severity == "error" for finding in self.findings)
