"""Which characters are taken out of prompts, and that it is said."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cleansing import cleanse, cleanse_messages, cleansed
from runtime.request import Request

INVISIBLE = "\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff\u00ad\x00\x07\x1b\x7f\x9b\U000e0041\U000e0100"


@pytest.mark.parametrize("character", INVISIBLE)
def test_what_nobody_sees_goes(character: str) -> None:
    assert cleanse(f"pay{character}ment") == ("payment", 1)


@pytest.mark.parametrize(
    "text", ["a\tb\r\nc", "می\u200cخواهم", "👩\u200d👩\u200d👧", "❤\ufe0f", "é", "日本語\u3000", " "]
)
def test_what_spells_stays(text: str) -> None:
    assert cleanse(text) == (text, 0)


@given(st.text())
def test_nothing_else_changes(text: str) -> None:
    kept, removed = cleanse(text)
    assert len(kept) + removed == len(text)
    assert cleanse(kept) == (kept, 0)
    left = iter(text)
    assert all(character in left for character in kept), "in order"
    gone = set(text) - set(kept)
    assert all(unicodedata.category(character) in ("Cc", "Cf", "Mn", "Cn") for character in gone)


def test_chats_to_their_depth() -> None:
    chat: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a\u200bb"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "\ufeff1", "n": 2}}}]},
    ]
    messages, removed = cleanse_messages(chat)
    assert removed == 2
    assert messages[0]["content"][0]["text"] == "ab"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": "1", "n": 2}
    assert chat[0]["content"][0]["text"] == "a\u200bb", "the caller's own stays"


@pytest.mark.parametrize("messages", [7, 0.5, "text\u200b", {"role": "user"}, [7, None, ["\u200b"]], ()])
def test_what_is_no_chat_is_left_to_whoever_refuses_it(messages: Any) -> None:
    request = Request(messages=messages)
    assert cleansed(request)[1] == (1 if isinstance(messages, list) else 0)


def test_a_request_that_is_clean_is_the_same_one() -> None:
    request = Request(prompt="plain")
    assert cleansed(request) == (request, 0)
    assert cleansed(Request(prompt_token_ids=[1])) == (Request(prompt_token_ids=[1]), 0)
    assert cleansed(Request(prompt="\x00x"))[0].prompt == "x"
