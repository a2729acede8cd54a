"""A client's messages as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from launcher.openai_front.errors import ApiError, bad_value, not_offered
from launcher.openai_front.schema import Message

#: OpenAI's newer name of a role → the name that templates know
_ROLES = {"developer": "system"}


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with text contents; a call's arguments become the object that templates print.

    Raises:
        ApiError: ``TF-OAI-013`` for a part that is no text, ``TF-OAI-014`` for a message that cannot be.
    """
    return [_message(at, message) for at, message in enumerate(messages)]


def _message(at: int, message: Message) -> dict[str, Any]:
    place = f"messages.{at}"
    if message.role == "function" or message.function_call is not None:
        raise not_offered(f"{place}.role", "functions became tools", 'send tool_calls, and answers of role "tool"')
    for name in ("audio", "annotations", "refusal"):
        if getattr(message, name):
            raise not_offered(f"{place}.{name}", "templates have no place for it")
    content = _content(place, message)
    calls = message.tool_calls or []
    if message.content is None and not calls:
        raise _malformed(place, "it has no content")
    if calls and message.role != "assistant":
        raise _malformed(place, f"tool_calls are an assistant's, not of role {message.role}")
    if (message.tool_call_id is not None) != (message.role == "tool"):
        raise _malformed(place, "tool_call_id goes with role tool, and with no other")
    found: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": content}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(f"{place}.tool_calls.{number}", call.function.arguments),
                },
            }
            for number, call in enumerate(calls)
        ]
    return found


def _content(place: str, message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for number, part in enumerate(message.content):
        if part.type != "text":
            raise ApiError(
                400,
                "TF-OAI-013",
                f"a part of type {part.type[:40]} is not offered: this model takes text only; send parts of type text",
                param=f"{place}.content.{number}.type",
            )
        if part.text is None or part.model_extra:
            other = ", ".join(part.model_extra or {}) or "no text"
            raise _malformed(f"{place}.content.{number}", f"a text part holds a text and nothing else; it has {other}")
        texts.append(part.text)
    return "\n".join(texts)


def _arguments(place: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _malformed(place, "function.arguments is no JSON object as text")
    return value


def _malformed(place: str, why: str) -> ApiError:
    return ApiError(400, "TF-OAI-014", f"{place} is no message that a chat can have: {why}", param=place)


def require_answers(messages: Sequence[Message]) -> None:
    """Refuse an answer of a tool that nobody called.

    Raises:
        ApiError: ``TF-OAI-003``.
    """
    called: set[str] = set()
    for at, message in enumerate(messages):
        called |= {call.id for call in message.tool_calls or ()}
        if message.role == "tool" and message.tool_call_id not in called:
            raise bad_value(
                f"messages.{at}.tool_call_id", f"no call before has the id {str(message.tool_call_id)[:60]}"
            )
