"""Invisible and control characters taken out of prompts, where a server is told to.

Text that nobody sees can carry instructions past a reader, and control characters reach terminals and logs. What is
taken out: C0 and C1 controls but tab and line ends, zero-width space, word joiner and invisible operators, byte order
marks, soft hyphens, marks and overrides of writing direction, interlinear annotations, tag characters and the
supplementary variation selectors. What stays: zero-width joiner and non-joiner, which spell Persian, Indic scripts
and emoji, and the common variation selectors, which choose an emoji's look.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.request import Request

_REMOVED = re.compile(
    "["
    "\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef"
    "]"
)


def cleanse(text: str) -> tuple[str, int]:
    """``text`` without those characters, and how many were taken out."""
    return _REMOVED.subn("", text)


def cleanse_messages(messages: Sequence[Any]) -> tuple[list[Any], int]:
    """A chat with every text in it cleansed, names and arguments of tools included, and how many were taken out."""
    cleansed, removed = _within(list(messages))
    return cleansed, removed


def cleansed(request: Request) -> tuple[Request, int]:
    """A request with the texts of its prompt cleansed, and how many characters were taken out."""
    removed = 0
    if isinstance(request.prompt, str):
        text, removed = cleanse(request.prompt)
        return (replace(request, prompt=text) if removed else request), removed
    # whatever else came in a chat's place is refused where its template is rendered
    if isinstance(request.messages, (list, tuple)):
        messages, removed = cleanse_messages(request.messages)
        return (replace(request, messages=messages) if removed else request), removed
    return request, removed


def _within(value: Any) -> tuple[Any, int]:
    if isinstance(value, str):
        return cleanse(value)
    if isinstance(value, Mapping):
        parts = {key: _within(inner) for key, inner in value.items()}
        return {key: part for key, (part, _) in parts.items()}, sum(count for _, count in parts.values())
    if isinstance(value, (list, tuple)):
        items = [_within(inner) for inner in value]
        return [item for item, _ in items], sum(count for _, count in items)
    return value, 0
