"""Text from tokens, one token at a time.

Policy: what is shown joined over all steps equals one decode of all tokens. Bytes of a character that
is not complete are held back (no replacement characters that later change); spaces come from the
tokens' own bytes. Byte-level BPE (GPT-2, Llama 3, SmolLM, Qwen) is decoded exactly through each
token's bytes; any other decoder (SentencePiece style) is run over a sliding window of tokens that
starts before the new ones, so that context-dependent spaces come out right.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from trtforge.ground.panics import panics_as

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
#: Prompt tokens that a windowed decoder sees before the output.
CONTEXT_TOKENS = 6
#: a byte of SentencePiece's byte fallback
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """Incremental decoding of one sequence's output."""

    def push(self, token: int) -> str:
        """Append ``token``; the text that became certain."""

    def push_all(self, tokens: Sequence[int]) -> str:
        """Append several tokens; the text that :meth:`push` would have returned for them, joined."""

    def peek(self, token: int) -> str:
        """The text that ``push(token)`` would return, without appending it."""

    def finish(self) -> str:
        """What was still held back, with undecodable bytes as U+FFFD."""


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in plain}
    shifted = 0
    for byte in range(256):
        if byte not in plain:
            table[chr(256 + shifted)] = byte
            shifted += 1
    return table


class DetokenizerFactory:
    """Makes detokenizers for one tokenizer; shared, holds the bytes of the tokens seen so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        special = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        stages = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
        self.byte_level = [stage.get("type") for stage in stages] == ["ByteLevel"]
        #: what is shown of each token, special ones and all, and without special ones
        self.shown = {False: ShownBytes(tokenizer, frozenset()), True: ShownBytes(tokenizer, special)}

    def make(self, *, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one output that follows the prompt tokens ``context``."""
        if self.byte_level:
            return ByteLevelDetokenizer(self, skip_special_tokens)
        return WindowDetokenizer(self._tokenizer, skip_special_tokens, context)

    def bytes_of(self, token: int) -> bytes:
        """What one token stands for by itself, special ones too; a part of a character is no UTF-8."""
        if self.byte_level:
            return self.shown[False][token]
        text = self._tokenizer.id_to_token(token) or ""
        if _BYTE.fullmatch(text):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()


class ShownBytes(dict[int, bytes]):
    """Bytes that each token adds to the text, worked out once each, for a byte-level tokenizer.

    None of the ``hidden`` ones and of unknown ids; of added tokens that are no byte-level text their UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        super().__init__()
        self._tokenizer, self._hidden = tokenizer, hidden

    def __missing__(self, token: int) -> bytes:
        text = None if token in self._hidden else self._tokenizer.id_to_token(token)
        table = _byte_of_character()
        try:
            found = bytes(table[c] for c in text or "")
        except KeyError:
            found = (text or "").encode()
        self[token] = found
        return found


class ByteLevelDetokenizer:
    """Exact: concatenated token bytes through an incremental UTF-8 decoder."""

    __slots__ = ("_decoder", "_shown")

    def __init__(self, factory: DetokenizerFactory, skip_special_tokens: bool) -> None:
        self._shown = factory.shown[skip_special_tokens]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._shown[token])

    def push_all(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._shown.__getitem__, tokens)))

    def peek(self, token: int) -> str:
        state = self._decoder.getstate()
        text = self.push(token)
        self._decoder.setstate(state)
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """Decodes a window of tokens before and after the newest and shows the difference.

    The window starts at the last point where the text was certain; as long as the new text ends in
    U+FFFD a character may be incomplete and nothing is shown.
    """

    __slots__ = ("_skip", "_start", "_tokenizer", "_tokens", "_told")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._tokens = [int(t) for t in context[-CONTEXT_TOKENS:]]
        self._start = 0
        self._told = len(self._tokens)

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._new_text()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._start, self._told = self._told, len(self._tokens)
        return text

    def push_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.push, tokens))

    def peek(self, token: int) -> str:
        self._tokens.append(token)
        text = self._new_text()
        self._tokens.pop()
        return "" if text.endswith(REPLACEMENT) else text

    def finish(self) -> str:
        text = self._new_text()
        self._start = self._told = len(self._tokens)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._start : self._told])
        return self._decode(self._tokens[self._start :])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        with panics_as(RuntimeError):
            return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip))
