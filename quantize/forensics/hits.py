"""Rules on a quantized checkpoint: what they say, and how a finding names its tensors and its file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quantize.forensics.checkpoint import Checkpoint
from trtforge.rules import rule as rule_engine
from trtforge.rules.registry import Registry
from trtforge.rules.rule import Breach, Severity, reason

#: names that a finding lists; the message says how many there are
MAX_NAMES = 8


@dataclass(frozen=True)
class Hit(Breach):
    """One fault: the tensors or modules concerned, what would help, and the file that holds it (None: the folder)."""

    names: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    file: str | None = None

    @property
    def ways_out(self) -> str:
        return "; ".join(self.remedies)


Check = Callable[[Checkpoint], Iterable[Hit]]


@dataclass(frozen=True)
class Rule(rule_engine.Rule[Checkpoint, Hit]):
    """A rule on a checkpoint.

    Args:
        weights: it needs tensors; of a bare config.json it is skipped.
        cases: further threads where this was reported.
    """

    weights: bool = field(default=True, kw_only=True)
    cases: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Finding(rule_engine.Finding[Hit]):
    """One fault of a checkpoint."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.breach.names

    @property
    def remedies(self) -> tuple[str, ...]:
        return self.breach.remedies

    @property
    def headline(self) -> str:
        return self.message + (f": {', '.join(self.names)}" if self.names else "")

    def to_json(self) -> dict[str, Any]:
        """The finding as one JSON-able object."""
        result: dict[str, Any] = {
            name: getattr(self, name) for name in ("code", "severity", "message", "title", "why", "source")
        }
        result |= {"names": list(self.names), "remedies": list(self.remedies)}
        if self.place is not None:
            result["file"] = self.place.file
        if self.waived is not None:
            result["waived"] = self.waived
        return result


RULES: Registry[Rule] = Registry("quantize.forensics.rules", codes=r"TF-(?:AUD|K6|K7|K17|QNT)-\d{3}")


def rule(
    code: str,
    severity: Severity,
    title: str,
    source: str | None = None,
    *,
    cases: tuple[str, ...] = (),
    weights: bool = True,
) -> Callable[[Check], Check]:
    """Register a check of the whole checkpoint; its docstring says why a breach cannot work."""

    def register(check: Check) -> Check:
        RULES.declare(Rule(code, severity, title, reason(check), source, check=check, weights=weights, cases=cases))
        return check

    return register


def hit(
    message: str,
    names: Iterable[str] = (),
    *remedies: str,
    severity: Severity | None = None,
    file: str | None = None,
) -> Iterator[Hit]:
    """One hit on some names, with their number in front. Of none there is no hit."""
    ordered = sorted(set(names))
    if not ordered:
        return
    more = f" (and {len(ordered) - MAX_NAMES} more)" if len(ordered) > MAX_NAMES else ""
    yield Hit(f"{len(ordered)}: {message}{more}", tuple(ordered[:MAX_NAMES]), remedies, file, severity=severity)


def said(message: str, *remedies: str, severity: Severity | None = None, file: str | None = None) -> Hit:
    """A hit on the checkpoint as a whole."""
    return Hit(message, (), remedies, file, severity=severity)
