"""``/v1/chat/completions``: what a chat asks, and its answers as one object or as a stream of pieces."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.openai_front.answers import Answers
from launcher.openai_front.ends import reasons
from launcher.openai_front.job import Piece
from launcher.openai_front.log_probs import LogProbs, merged
from launcher.openai_front.tool_plan import ToolPlan
from launcher.openai_front.tools.events import CallDelta, Event, Parser
from runtime.tokenizer import EngineTokenizer


@dataclass
class _Choice:
    """One answer while it comes."""

    parser: Parser | None
    log_probs: LogProbs | None
    one: bool
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    begun: bool = False

    def events(self, piece: Piece) -> list[Event]:
        """What a piece says, calls taken apart; calls beyond the first are left out where one is wanted."""
        if self.parser is None:
            found: list[Event] = [piece.text] if piece.text else []
        else:
            found = self.parser.push(piece.text)
            if piece.finish:
                found += self.parser.finish()
        if self.one:
            found = [event for event in found if isinstance(event, str) or event.index == 0]
        for event in found:
            self._keep(event)
        return found

    def _keep(self, event: Event) -> None:
        if isinstance(event, str):
            self.content += event
            return
        if event.id:
            self.calls.append({"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}})
        self.calls[event.index]["function"]["arguments"] += event.arguments


class ChatAnswer:
    """The answers to one chat.

    Args:
        head: what every object begins with.
        log_probs: whether they are wanted.
    """

    def __init__(
        self,
        answers: Answers,
        plan: ToolPlan,
        *,
        n: int,
        head: Mapping[str, Any],
        tokenizer: EngineTokenizer,
        log_probs: bool,
    ) -> None:
        self._answers = answers
        self._plan = plan
        self._head = head
        self._choices = [
            _Choice(plan.parser() if plan.parser else None, LogProbs(tokenizer) if log_probs else None, plan.one)
            for _ in range(n)
        ]

    async def whole(self) -> dict[str, Any]:
        """The response without a stream."""
        async with contextlib.aclosing(self._answers.pieces()) as pieces:
            async for piece in pieces:
                choice = self._choices[piece.index]
                choice.events(piece)
                if choice.log_probs is not None and piece.token_ids:
                    choice.parts.append(choice.log_probs.of_chat(piece))
                if piece.finish:
                    choice.ends = self._ends(choice, piece.finish)
        choices = [
            {
                "index": number,
                "message": {
                    "role": "assistant",
                    "content": choice.content or (None if choice.calls else ""),
                    "refusal": None,
                    **({"tool_calls": choice.calls} if choice.calls else {}),
                },
                "logprobs": merged(choice.parts),
                **choice.ends,
            }
            for number, choice in enumerate(self._choices)
        ]
        usage = self._answers.usage.to_json()
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    async def stream(self, *, usage: bool) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream; with ``usage`` the last one holds it."""
        async with contextlib.aclosing(self._answers.pieces()) as pieces:
            async for piece in pieces:
                choice = self._choices[piece.index]
                said = None
                if choice.log_probs is not None and piece.token_ids:
                    said = choice.log_probs.of_chat(piece)
                deltas = [_delta(event) for event in choice.events(piece)]
                if not choice.begun:
                    choice.begun = True
                    yield self._chunk(piece.index, {"role": "assistant", "content": "", "refusal": None}, usage=usage)
                if not deltas and said is not None:
                    deltas = [{}]
                for number, delta in enumerate(deltas):
                    yield self._chunk(piece.index, delta, log_probs=None if number else said, usage=usage)
                if piece.finish:
                    yield self._chunk(piece.index, {}, self._ends(choice, piece.finish), usage=usage)
        if usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._answers.usage.to_json(),
            }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        ends: dict[str, str] | None = None,
        *,
        log_probs: dict[str, Any] | None = None,
        usage: bool,
    ) -> dict[str, Any]:
        end: Mapping[str, str | None] = ends or {"finish_reason": None}
        choice = {"index": index, "delta": delta, "logprobs": log_probs, **end}
        found = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return found | {"usage": None} if usage else found

    def _ends(self, choice: _Choice, finish: str) -> dict[str, str]:
        found = reasons(finish)
        if choice.calls and finish == "stop" and not self._plan.named:
            return {"finish_reason": "tool_calls"}
        return found


def _delta(event: Event) -> dict[str, Any]:
    if isinstance(event, str):
        return {"content": event}
    return {"tool_calls": [_call(event)]}


def _call(event: CallDelta) -> dict[str, Any]:
    if event.id:
        function = {"name": event.name, "arguments": event.arguments}
        return {"index": event.index, "id": event.id, "type": "function", "function": function}
    return {"index": event.index, "function": {"arguments": event.arguments}}
