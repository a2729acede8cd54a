"""Which prompts are taken, and how they become tokens."""

from __future__ import annotations

import pytest

from evals.speculation.prompts import CLASSES, chosen, held_out, tokens_of
from trtforge.ground.errors import ForgeError


class Characters:
    """One token a character; a chat wraps its turn."""

    def __init__(self, template: str | None = "chat") -> None:
        self.chat_template = template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]

    def render_chat(self, messages: list[dict[str, str]]) -> str:
        return f"<{messages[0]['role']}>{messages[0]['content']}<assistant>"


def test_open_text_goes_on_without_a_template() -> None:
    assert tokens_of(Characters(), "open", "a") == [1, ord("a")]
    assert tokens_of(Characters(), "chat", "a") == list(map(ord, "<user>a<assistant>"))
    assert tokens_of(Characters(None), "chat", "a") == [1, ord("a")]


def test_the_first_that_fit_are_taken() -> None:
    tokenizer = Characters()
    everything = {kind: [tokens_of(tokenizer, kind, text) for text in texts] for kind, texts in held_out().items()}
    assert chosen(tokenizer, 2, 10_000) == {kind: everything[kind][:2] for kind in CLASSES}
    longest = sorted(len(ids) for ids in everything["copy"])[0]
    found = chosen(tokenizer, 1, longest)
    assert all(len(ids) <= longest for of_kind in found.values() for ids in of_kind)


def test_too_few_are_refused_with_what_would_work() -> None:
    with pytest.raises(ForgeError) as caught:
        chosen(Characters(), 10_000, 100_000)
    there = len(held_out()["chat"])
    assert caught.value.code == "TF-EVL-012" and caught.value.remedies == [f"evals.speculation.prompts: {there}"]
    with pytest.raises(ForgeError) as caught:
        chosen(Characters(), 1, 3)
    assert caught.value.numbers["fit"] == 0 and any("max_seq_len" in way for way in caught.value.remedies)
