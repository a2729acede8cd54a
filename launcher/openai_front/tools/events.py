"""What a parser of tool calls says, and what every parser is."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

#: Mistral's templates refuse identifiers of another length
SHORT_ID = 9


@dataclass(frozen=True, slots=True)
class CallDelta:
    """News of one call: its identifier and name with the first, then the JSON of its arguments piece by piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


#: text for the client, or news of a call
Event = str | CallDelta


class Parser(Protocol):
    """Takes a model's text apart. What is no call of a tool that was offered is text, and nothing is lost."""

    def push(self, text: str) -> list[Event]:
        """What became certain through ``text``."""

    def finish(self) -> list[Event]:
        """What was still held back, once no more comes."""


def long_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(SHORT_ID))


class Numbering:
    """Indices, identifiers and known names of one answer's calls."""

    def __init__(self, names: Collection[str], make_id: Callable[[], str] = long_id) -> None:
        self.names = frozenset(names)
        self._make_id = make_id
        self._next = 0

    def open(self, name: str) -> CallDelta:
        """The first news of a call."""
        self._next += 1
        return CallDelta(self._next - 1, self._make_id(), name)

    def arguments(self, text: str) -> CallDelta:
        """More of the arguments of the call that was opened last."""
        return CallDelta(self._next - 1, arguments=text)


def before_mark(text: str, mark: str) -> tuple[str, str, bool]:
    """What stands before ``mark``, what is left of ``text``, and whether the mark is there.

    Where it is not, what is left may be its beginning.
    """
    before, found, rest = text.partition(mark)
    if found:
        return before, rest, True
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    keep = next((size for size in sizes if mark.startswith(text[-size:])), 0)
    return text[: len(text) - keep], text[len(text) - keep :], False


def joined(events: list[Event]) -> list[Event]:
    """Neighbouring texts, and neighbouring arguments of one call, as one event each."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, str):
            if not event:
                continue
            if isinstance(last, str):
                found[-1] = last + event
                continue
        elif isinstance(last, CallDelta) and last.index == event.index and not event.id:
            found[-1] = CallDelta(last.index, last.id, last.name, last.arguments + event.arguments)
            continue
        found.append(event)
    return found
