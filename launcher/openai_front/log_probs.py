"""Log-probabilities of chosen tokens, in the shapes of chats and of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.openai_front.job import Piece
from runtime.tokenizer import EngineTokenizer


class LogProbs:
    """The tokens of one answer as they come.

    A token that is a part of a character has its bytes, and U+FFFD for a text.
    """

    def __init__(self, tokenizer: EngineTokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def of_chat(self, piece: Piece) -> dict[str, Any]:
        """``choices[].logprobs`` of a chat."""
        return {
            "content": [
                {"token": text, "logprob": value, "bytes": raw, "top_logprobs": []}
                for text, raw, value in self._entries(piece)
            ],
            "refusal": None,
        }

    def of_completion(self, piece: Piece) -> dict[str, Any]:
        """``choices[].logprobs`` of a completion."""
        tokens, values, offsets = [], [], []
        for text, _, value in self._entries(piece):
            tokens.append(text)
            values.append(value)
            offsets.append(self._offset)
            self._offset += len(text)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}

    def _entries(self, piece: Piece) -> list[tuple[str, list[int], float]]:
        return [
            (*token_text(self._tokenizer, token), value)
            for token, value in zip(piece.token_ids, piece.log_probs, strict=False)
        ]


def token_text(tokenizer: EngineTokenizer, token: int) -> tuple[str, list[int]]:
    """Text and bytes of one token by itself, special ones too."""
    raw = tokenizer.token_bytes(token)
    return raw.decode("utf-8", "replace"), list(raw)


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The parts of a whole answer as one; None where there are none."""
    if not parts:
        return None
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = [*found.get(name, []), *value] if isinstance(value, list) else value
    return found
