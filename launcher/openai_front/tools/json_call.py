"""One call as a JSON object, read character by character: ``{"name": …, "arguments": {…}}``.

The arguments' own text is passed on as it comes, so that a client has it before the object is complete. Keys may stand
in any order, and others than these two are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from launcher.openai_front.tools.events import Event, Numbering

_SPACE = " \t\r\n"
#: levels of nesting in a call's arguments
MOST_DEPTH = 128


class JsonCall:
    """The state of one object.

    Attributes:
        text: everything that was read of it.
        opened: its name is known and was passed on.
        ended: it is complete.
        failed: it is no call of a known tool; what was passed on stays.
    """

    def __init__(self, numbering: Numbering, keys: Collection[str]) -> None:
        self._numbering = numbering
        self._keys = frozenset(keys)
        self.text = ""
        self.opened = self.ended = self.failed = False
        self._expects = "{"
        self._depth = 0
        self._quoted = self._escaped = False
        self._key = ""
        self._value: list[str] = []
        self._waiting = ""
        self._said = False

    def push(self, character: str) -> list[Event]:
        """News of one more character; nothing more is to be pushed once it ended or failed."""
        self.text += character
        if self._value:
            return self._more(character)
        if character in _SPACE:
            return []
        return self._between(character)

    def _between(self, character: str) -> list[Event]:
        """A character outside keys and values."""
        if character == self._expects == "{":
            self._expects = "key"
        elif self._expects in ("key", "next key") and character == '"':
            self._begin(character)
        elif self._expects == ":" == character:
            self._expects = "value"
        elif self._expects == "value":
            self._begin(character)
            if not self._quoted and not self._depth:
                return []  # a number or a word: it ends with what follows
            return self._stream(character)
        elif self._expects == "," == character:
            self._expects = "next key"
        elif character == "}" and self._expects in (",", "key"):
            return self._close()
        else:
            self.failed = True
        return []

    def _begin(self, character: str) -> None:
        self._value = [character]
        self._quoted, self._escaped = character == '"', False
        self._depth = int(character in "{[")

    def _more(self, character: str) -> list[Event]:
        """A character inside a key or a value."""
        if self._quoted:
            self._value.append(character)
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
                if not self._depth:
                    return self._complete()
            return self._stream(character)
        if not self._depth:  # a number or a word
            if character in ",}" or character in _SPACE:
                return self._complete() + ([] if character in _SPACE else self._between(character))
            self._value.append(character)
            return []
        self._value.append(character)
        if character == '"':
            self._quoted = True
        self._depth += (character in "{[") - (character in "}]")
        if self._depth > MOST_DEPTH:
            self.failed = True
            return []
        return self._stream(character) + ([] if self._depth else self._complete())

    def _stream(self, character: str) -> list[Event]:
        """A character of the arguments: passed on when they are an object and the name is known."""
        if self._expects != "value" or self._key not in self._keys or self._value[0] != "{":
            return []
        return self._pass(character)

    def _pass(self, text: str) -> list[Event]:
        self._said = True
        if not self.opened:
            self._waiting += text
            return []
        return [self._numbering.arguments(text)]

    def _complete(self) -> list[Event]:
        """The key or value that was being read is whole."""
        raw = "".join(self._value)
        self._value = []
        if self._expects in ("key", "next key"):
            self._key, self._expects = str(self._loaded(raw)), ":"
            return []
        self._expects = ","
        if self._key == "name" and not self.opened:
            return self._named(self._loaded(raw))
        if self._key not in self._keys:
            return []
        self._keys = frozenset()  # the arguments are there: another member of such a name is none of them
        if raw[0] == "{":
            return []
        # arguments that some models write as a text with JSON in it, or as null
        value = self._loaded(raw)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            return self._pass(value)
        self.failed = self.failed or value is not None
        return []

    def _named(self, name: object) -> list[Event]:
        if name not in self._numbering.names:
            self.failed = True
            return []
        self.opened = True
        waiting, self._waiting = self._waiting, ""
        opened: list[Event] = [self._numbering.open(str(name))]
        return opened + ([self._numbering.arguments(waiting)] if waiting else [])

    def _close(self) -> list[Event]:
        self.ended = True
        if not self.opened:
            self.failed = True
            return []
        return [] if self._said else [self._numbering.arguments("{}")]

    def _loaded(self, raw: str) -> object:
        try:
            return json.loads(raw)
        except ValueError:
            self.failed = True
            return None
