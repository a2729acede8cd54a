"""Llama 3's format: the answer is ``{"name": …, "parameters": {…}}``, several are parted by semicolons.

A mark ``<|python_tag|>`` may stand before it; as a special token it is mostly left out of the text.
"""

from __future__ import annotations

from launcher.openai_front.tools.events import Event, Numbering
from launcher.openai_front.tools.json_calls import JsonCalls

MARK = "<|python_tag|>"


class Llama3Parser:
    """Calls that are the whole answer, or text."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._calls: JsonCalls | None = None
        self._start = ""

    def push(self, text: str) -> list[Event]:
        if self._calls is not None:
            return self._calls.push(text)
        self._start += text
        bare = self._start.lstrip()
        if len(bare) < len(MARK) and MARK.startswith(bare):
            return []
        mark = MARK if bare.startswith(MARK) else ""
        keys = ("parameters", "arguments")
        self._calls = JsonCalls(self._numbering, keys, array=False, separators=";,", mark=mark)
        return self._calls.push(bare[len(MARK) :] if mark else self._start)

    def finish(self) -> list[Event]:
        if self._calls is None:
            return [self._start] if self._start else []
        return self._calls.finish()
