"""How few tokens a text can have, without tokenizing it: what lets a hopeless prompt be refused at once.

Policy: a bound is a proof or it is not given. A token stands for at most as many bytes as the longest entry of the
vocabulary, and for at most as many dense bytes (letters, digits, all that is not ASCII: no runs of blanks or dashes,
which make the longest entries) as the entry that holds most. That holds only where every byte of the text ends in
some token, so it is claimed for byte-level and byte-fallback BPE with normalizers that are known to keep the bytes,
and for nothing else. What the proof lets through is tokenized up to a place where the tokenizer always cuts first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Bytes that one byte of normalized text may come from: composed Hangul takes 9 bytes to 3, the most of all.
COMPOSITION = 3
#: A word that ends before one space and another word: word-splitting pre-tokenizers cut there whatever surrounds it.
_CUT = re.compile(r"[A-Za-z](?= [A-Za-z])")
_SPACE = "▁"
_LOSSLESS_SPLITS = {"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}


@dataclass(frozen=True, slots=True)
class TokenBound:
    """Lower bound on the tokens of a text, for one tokenizer.

    Attributes:
        longest: most bytes of normalized text that one token stands for.
        densest: most dense bytes of normalized text that one token stands for.
        composes: the normalizer may shorten text that is not ASCII.
        cuts: word borders (:data:`_CUT`) always part tokens, so that a text may be tokenized up to one.
    """

    longest: int
    densest: int
    composes: bool
    cuts: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenBound | None:
        """The bound of a tokenizer; None for one whose tokens may stand for any length of text."""
        model: Any = tokenizer.model
        if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
            return None
        normalizers = _parts(tokenizer.normalizer, "normalizers")
        splitters = _parts(tokenizer.pre_tokenizer, "pretokenizers")
        if normalizers is None or splitters is None or not all(_keeps_bytes(n) for n in normalizers):
            return None
        if not all(_keeps_text(s) for s in splitters):
            return None
        added = tokenizer.get_added_tokens_decoder().values()
        # Such a token swallows any amount of white space beside it.
        if any(token.lstrip or token.rstrip for token in added):
            return None
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        byte_level = any(part["type"] == "ByteLevel" for part in (*splitters, *normalizers))
        if not byte_level and not (model.byte_fallback and all(f"<0x{b:02X}>" in vocabulary for b in range(256))):
            return None
        words = [token.content for token in added]
        # A byte-level entry has one character a byte; another has its text, the space written as ▁.
        lengths = map(len, vocabulary) if byte_level else (len(piece.encode()) for piece in vocabulary)
        return cls(
            longest=max([1, *lengths, *(len(word.encode()) for word in words)]),
            densest=max(1, _densest_entry(vocabulary, byte_level), *(_dense(word.encode()) for word in words)),
            composes=any(part["type"] == "NFC" for part in normalizers),
            cuts=byte_level
            and all(part["type"] in ("ByteLevel", "NFC") for part in normalizers)
            and _cuts_words(tokenizer)
            and not any(_CUT.search(token.content) for token in added),
        )

    def least_tokens(self, text: str) -> int:
        """Tokens that ``text`` has at least. Costs a copy of the text, not a tokenization."""
        size, shrink = len(text.encode()), 1
        if self.composes and not text.isascii():
            shrink = COMPOSITION
            for character in _BECOME_PUNCTUATION:
                text = text.replace(character, "")
        return max(_ceil(size, self.longest * shrink), _ceil(_dense(text.encode()), self.densest * shrink))

    def cut(self, text: str, near: int) -> int:
        """The first place from ``near`` on where the tokens of ``text`` part for certain; 0: none is known."""
        found = _CUT.search(text, near) if self.cuts else None
        return found.end() if found else 0


def _ceil(total: int, part: int) -> int:
    return -(-total // part)


#: Characters beyond ASCII that composition (NFC) turns into ASCII punctuation.
_BECOME_PUNCTUATION = "\u037e\u1fef"
_SPARSE = bytes(b for b in range(128) if not chr(b).isalnum())
#: The same bytes as byte-level vocabularies write them: 0-32 and 127 as the characters from 256 on.
_SPARSE_WRITTEN = dict.fromkeys([*_SPARSE, *range(256, 256 + 34)])


def _dense(data: bytes) -> int:
    return len(data.translate(None, _SPARSE))


def _densest_entry(vocabulary: Iterable[str], byte_level: bool) -> int:
    best = 0
    for piece in sorted(vocabulary, key=len, reverse=True):
        if len(piece) * (1 if byte_level else 4) <= best:
            break  # no shorter entry can hold more
        best = max(best, len(piece.translate(_SPARSE_WRITTEN)) if byte_level else _dense(piece.encode()))
    return best


def _parts(component: Any, key: str) -> list[dict[str, Any]] | None:
    """The steps of a normalizer or pre-tokenizer as its own JSON; None when it has none to show (custom ones)."""
    if component is None:
        return []
    try:
        state = json.loads(component.__getstate__())
    except Exception:
        return None
    return list(state[key]) if state.get("type") == "Sequence" else [state]


def _keeps_bytes(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return step.get("pattern") == {"String": " "} and step.get("content") == _SPACE
    return step["type"] in ("NFC", "Prepend", "ByteLevel")


def _keeps_text(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        return step.get("behavior") in _LOSSLESS_SPLITS
    return step["type"] in ("ByteLevel", "Digits", "Metaspace")


def _cuts_words(tokenizer: Tokenizer) -> bool:
    splitter: Any = tokenizer.pre_tokenizer
    if splitter is None:
        return False
    pieces = splitter.pre_tokenize_str("one two  three four")
    ends = {end for _, (_, end) in pieces}
    return {3, 14} <= ends
