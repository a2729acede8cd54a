"""Hermes' format, which Qwen takes too: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` within text.

Qwen2.5 and Qwen3 templates, NousResearch's Hermes.
"""

from __future__ import annotations

from launcher.openai_front.tools.events import Event, Numbering, before_mark, joined
from launcher.openai_front.tools.json_call import JsonCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """Text with calls between marks, any number of them."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._text = ""
        self._space = ""
        #: white space before the call that is being read
        self._taken = ""
        self._mark = OPEN
        self._call: JsonCall | None = None
        self._called = False

    def push(self, text: str) -> list[Event]:
        self._text += text
        events: list[Event] = []
        while self._text:
            before = len(self._text), self._mark
            events += self._of_call(self._call) if self._call is not None else self._of_text()
            if (len(self._text), self._mark) == before:
                break
        return joined(events)

    def finish(self) -> list[Event]:
        call, self._call = self._call, None
        rest, self._text = "" if self._mark == CLOSE else self._text, ""
        if call is not None and not call.opened:
            rest = self._taken + OPEN + call.text + rest
        if not rest.strip() and self._called:
            return []
        return joined([self._space + rest])

    def _of_text(self) -> list[Event]:
        text, self._text, marked = before_mark(self._text, self._mark)
        if self._mark == CLOSE:  # between a call's object and its mark nothing is text
            self._mark = OPEN if marked else CLOSE
            return []
        if marked:
            self._call = JsonCall(self._numbering, ("arguments", "parameters"))
        return self._shown(text)

    def _shown(self, text: str) -> list[Event]:
        """Text; the white space at its end waits for what follows, and goes when that is a call."""
        text = self._space + text
        bare = text.rstrip()
        self._space = text[len(bare) :]
        if self._call is not None:
            self._taken, self._space = self._space, ""
        return [bare] if bare else []

    def _of_call(self, call: JsonCall) -> list[Event]:
        events: list[Event] = []
        for at, character in enumerate(self._text):
            events += call.push(character)
            if call.ended or call.failed:
                self._text = self._text[at + 1 :]
                self._call = None
                if call.opened:
                    self._called, self._mark = True, CLOSE
                    return events
                return [*events, self._taken + OPEN + call.text]  # no call of a tool that was offered: text
        self._text = ""
        return events
