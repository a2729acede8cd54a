"""Mistral's formats: ``[TOOL_CALLS][{"name": …, "arguments": {…}}]``, and since 2025 ``[TOOL_CALLS]name[ARGS]{…}``.

The marks are special tokens, which are left out of a model's text; the answer then begins with what follows them.
"""

from __future__ import annotations

import re

from launcher.openai_front.tools.events import Event, Numbering, before_mark, joined
from launcher.openai_front.tools.json_calls import JsonCalls

MARK, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"


class MistralParser:
    """Text, then calls to the end."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._text = ""
        #: start: nothing was shown; marked: behind the mark; text: no call so far
        self._state = "start"
        self._calls: JsonCalls | _Named | None = None

    def push(self, text: str) -> list[Event]:
        self._text += text
        return joined(self._step())

    def finish(self) -> list[Event]:
        events = [] if self._calls is None else self._calls.finish()
        rest, self._text = self._text, ""
        if self._state == "marked" and self._calls is None:
            rest = MARK + rest
        return joined([*events, rest])

    def _step(self) -> list[Event]:
        if self._calls is not None:
            text, self._text = self._text, ""
            return self._calls.push(text)
        if self._state == "text":
            return self._of_text()
        bare = self._text.lstrip()
        if self._state == "start":
            if MARK.startswith(bare):
                return []
            if bare.startswith(MARK):
                self._text, self._state = bare[len(MARK) :], "marked"
                return self._step()
        if not bare:
            return []
        mark = MARK if self._state == "marked" else ""
        head = re.split(r"[\[{]", bare, maxsplit=1)[0]
        name, whole = head.strip(), len(head) < len(bare)
        if bare[0] == "[":
            self._calls = JsonCalls(self._numbering, ("arguments", "parameters"), array=True, mark=mark)
        elif whole and name in self._numbering.names:
            self._calls = _Named(self._numbering, mark)
        elif not whole and any(known.startswith(name) for known in self._numbering.names):
            return []  # the beginning of a tool's name, so far
        else:
            self._state = "text"
            return [mark, *self._step()]
        return self._step()

    def _of_text(self) -> list[Event]:
        before, self._text, marked = before_mark(self._text, MARK)
        if not marked:
            return [before]
        self._state = "marked"
        return [before, *self._step()]


class _Named:
    """``name[ARGS]{…}``, again and again; the arguments' text is passed on as it comes."""

    def __init__(self, numbering: Numbering, mark: str) -> None:
        self._numbering = numbering
        self._held = mark
        self._depth = 0
        self._quoted = self._escaped = False
        self._plain = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for at, character in enumerate(text):
            if self._plain:
                return [*events, text[at:]]
            events += self._inside(character) if self._depth else self._before(character)
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        return [] if self._depth or not held.strip() else [held]

    def _before(self, character: str) -> list[Event]:
        self._held += character
        if character != "{":
            return []
        name = self._held[:-1].replace(MARK, "").replace(ARGUMENTS, "").strip()
        held, self._held = self._held, ""
        if name not in self._numbering.names:
            self._plain = True
            return [held]
        self._depth, self._quoted, self._escaped = 1, False, False
        return [self._numbering.open(name), self._numbering.arguments("{")]

    def _inside(self, character: str) -> list[Event]:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = self._quoted
        elif character == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += (character in "{[") - (character in "}]")
        return [self._numbering.arguments(character)]
