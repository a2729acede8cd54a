"""Calls as JSON objects, one after the other: in an array, or parted by a character."""

from __future__ import annotations

from collections.abc import Collection

from launcher.openai_front.tools.events import Event, Numbering, joined
from launcher.openai_front.tools.json_call import JsonCall

_SPACE = " \t\r\n"


class JsonCalls:
    """Text that is nothing but calls, or else no call at all.

    Args:
        keys: names of the member that holds the arguments.
        array: the objects stand in ``[…]``, parted by commas; else they are parted by ``separators``.
        mark: what stood before; it is text where no call follows.

    Attributes:
        ended: the array is closed; what follows is not read.
    """

    def __init__(
        self, numbering: Numbering, keys: Collection[str], *, array: bool, separators: str = ",", mark: str = ""
    ) -> None:
        self._numbering = numbering
        self._keys = keys
        self._separators = separators
        self._array = array
        self._expects = "[" if array else "{"
        self._held = mark
        self._call: JsonCall | None = None
        self._plain = False
        self.ended = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for at, character in enumerate(text):
            if self._plain:
                events.append(text[at:])
                break
            events += self._take(character)
        return joined(events)

    def finish(self) -> list[Event]:
        held, call = self._held, self._call
        self._held, self._call = "", None
        if call is not None and not call.opened:
            held += call.text
        return [held] if held.strip(_SPACE + self._separators) else []

    def _take(self, character: str) -> list[Event]:
        if self._call is not None:
            return self._of_call(self._call, character)
        if character in _SPACE:
            self._held += character
            return []
        if character == self._expects == "[":
            self._expects = "{]"
        elif character == "{" and "{" in self._expects:
            self._call = JsonCall(self._numbering, self._keys)
            return self._of_call(self._call, character)
        elif character in self._separators and "," in self._expects:
            self._expects = "{"
        elif character == "]" and "]" in self._expects:
            self._expects, self.ended = "", True
            if not self._held.strip():
                self._held = ""
                return []
        else:
            return self._give_up(character)
        self._held += character
        return []

    def _of_call(self, call: JsonCall, character: str) -> list[Event]:
        events = call.push(character)
        if call.opened:
            self._held = ""
        if call.failed and not call.opened:
            self._call = None
            return self._give_up(call.text)
        if call.ended or call.failed:
            self._call = None
            self._expects = ",]" if self._array else ","
            if call.failed:  # what was passed on of it cannot be taken back; nothing after it can be read
                self._expects = ""
        return events

    def _give_up(self, text: str) -> list[Event]:
        """From here on everything is text."""
        held, self._held, self._plain = self._held, "", True
        return [held + text]
