"""Rule, breach and finding: what is asked, where it does not hold, and the two together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, Self, TypeVar, get_args

from trtforge.ground.docstrings import require_docstrings
from trtforge.ground.errors import ForgeError

Severity = Literal["error", "warning", "note"]
#: the gravest first
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Place:
    """Where a finding is.

    Args:
        file: the file, as the user would open it (relative to the working directory or absolute).
        line: line in ``file``, from 1; None when the whole file is meant.
        column: column in ``line``, from 1.
    """

    file: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class Breach:
    """One place where a rule does not hold: what a check yields.

    ``message`` says what is wrong here, with the numbers, in one or two sentences. The others differ from what the
    rule declares only where they are given.
    """

    message: str
    severity: Severity | None = field(default=None, kw_only=True)
    why: str | None = field(default=None, kw_only=True)
    source: str | None = field(default=None, kw_only=True)

    @property
    def ways_out(self) -> str:
        """What would work here, as one text; empty when there is nothing to say."""
        return ""


SubjectT = TypeVar("SubjectT", contravariant=True)
BreachT = TypeVar("BreachT", bound=Breach, covariant=True)


@dataclass(frozen=True)
class Identity:
    """What is the same for everything that is found under one code.

    Args:
        code: stable, never reused, such as ``TF-TRI-104``.
        severity: the usual one; a breach may be milder or graver, and says so.
        title: what is wrong, in a few words.
        why: why it cannot work.
        source: where that comes from: a URL or a document's name.
        waivable: whether a user may set it aside.
    """

    code: str
    severity: Severity
    title: str = ""
    why: str = ""
    source: str | None = None
    waivable: bool = True


@dataclass(frozen=True)
class Rule(Identity, Generic[SubjectT, BreachT]):
    """A check with its public identity."""

    check: Callable[[SubjectT], Iterable[BreachT]] = field(kw_only=True)

    @property
    def module(self) -> str:
        """The rule module that declares it."""
        return self.check.__module__.rpartition(".")[2]


def reason(check: Callable[..., object]) -> str:
    """A check's docstring as one line: why what it finds cannot work.

    Raises:
        EnvironmentLacks: ``TF-ENV-033`` this Python strips docstrings.
    """
    require_docstrings()
    return " ".join((check.__doc__ or "").split())


@dataclass(frozen=True)
class Finding(Generic[BreachT]):
    """What was found: the rule and where it does not hold.

    Args:
        waived: the justification of a finding that the user has set aside; None for one that counts.
        place: file and line, where they are known.
    """

    rule: Identity
    breach: BreachT
    waived: str | None = None
    place: Place | None = None

    @property
    def code(self) -> str:
        return self.rule.code

    @property
    def severity(self) -> Severity:
        return self.breach.severity or self.rule.severity

    @property
    def title(self) -> str:
        return self.rule.title

    @property
    def message(self) -> str:
        return self.breach.message

    @property
    def why(self) -> str:
        return self.breach.why or self.rule.why

    @property
    def source(self) -> str | None:
        return self.breach.source or self.rule.source

    @property
    def waivable(self) -> bool:
        return self.rule.waivable

    @property
    def blocks(self) -> bool:
        """Whether it is an error that counts."""
        return self.severity == "error" and self.waived is None

    @property
    def headline(self) -> str:
        """The message for a tool that shows it beside others; it names what the place does not."""
        return self.message

    def at(self, place: Place | None) -> Self:
        """The finding at another place."""
        return replace(self, place=place)


@dataclass(frozen=True)
class Told(Breach):
    """A breach that no rule module found: its ways out are sentences."""

    remedies: tuple[str, ...] = ()

    @property
    def ways_out(self) -> str:
        return "; ".join(self.remedies)


def refused(error: ForgeError, place: Place | None) -> Finding[Told]:
    """What keeps the rules from being asked at all, as a finding."""
    rule = Identity(error.code, "error", error.message, error.why or "")
    return Finding(rule, Told(error.message, tuple(error.remedies)), place=place)
