"""Calls as a list of Python calls: ``[get_weather(city="Paris", days=2), get_time(zone="CET")]``.

Llama 3.2 and 4 and their kin. A call is passed on once it is whole, when its values become JSON. Nothing is
evaluated: the text is parsed, and only literals are taken.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from launcher.openai_front.tools.events import Event, Numbering, joined

MARKS = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")
#: characters of a call
MOST = 65536
_OPEN, _CLOSE = "([{", ")]}"
_WORDS = {"true": True, "false": False, "null": None}


class PythonicParser:
    """A list of calls that is the whole answer, or text."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._mark = self._held = ""
        self._call = ""
        self._state = "start"
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for at, character in enumerate(text):
            if self._state == "text":
                events.append(text[at:])
                break
            events += self._take(character)
        return joined(events)

    def finish(self) -> list[Event]:
        rest = self._mark + self._held + self._call
        self._mark = self._held = self._call = ""
        return [rest] if rest.strip() and self._state not in ("ended", "text") else []

    def _take(self, character: str) -> list[Event]:
        if self._state == "start":
            self._held += character
            bare = self._held.strip()
            if any(mark.startswith(bare) for mark in MARKS):
                if bare in MARKS:
                    self._mark, self._held = self._mark + bare, ""
                return []
            if bare == "[":
                self._state = "call"
                return []
            return self._text("")
        if self._state == "ended":  # a closing mark may follow
            self._held += character
            bare = self._held.strip()
            if not bare or any(mark.startswith(bare) for mark in MARKS):
                return []
            return self._text("")
        return self._in_list(character)

    def _in_list(self, character: str) -> list[Event]:
        if not self._call and character in " \t\r\n,":
            self._held += character
            return []
        if not self._call and character == "]":
            if self._held.strip(" \t\r\n,") == "[":  # an empty list is no call
                return self._text(character)
            self._state, self._held = "ended", ""
            return []
        self._call += character
        if len(self._call) > MOST:
            return self._text("")
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
            return []
        if character in "\"'":
            self._quote = character
        self._depth += (character in _OPEN) - (character in _CLOSE)
        if self._depth < 0:
            return self._text("")
        return self._whole() if character == ")" and not self._depth else []

    def _whole(self) -> list[Event]:
        found = _read(self._call)
        if found is None or found[0] not in self._numbering.names:
            return self._text("")
        self._mark = self._held = self._call = ""
        name, arguments = found
        return [self._numbering.open(name), self._numbering.arguments(json.dumps(arguments, ensure_ascii=False))]

    def _text(self, more: str) -> list[Event]:
        """From here on everything is text."""
        text, self._state = self._mark + self._held + self._call + more, "text"
        self._mark = self._held = self._call = ""
        return [text]


def _read(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call; None for what is none."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            return None
        arguments = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = _literal(keyword.value)
        json.dumps(arguments, allow_nan=False)
        return ast.unparse(node.func), arguments
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key): _literal(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    return ast.literal_eval(node)
