"""Guided decoding through llguidance (the ``guided`` extra): JSON Schema, regular expression, choice.

Policy: grammars are compiled when the request is made, on the client's thread, and refused there
(``TF-RUN-087``); so is the first token mask, which is the slowest: nested repetitions unfold in it. In a step a grammar
costs one token mask (tens of microseconds) for its own row only. A grammar that grows past the library's limits later
ends its request with ``TF-RUN-122`` and never as if its text were complete. llguidance is a single compiled library
without dependencies of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import short_repr
from runtime.sampling.params import GuidedDecoding
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.panics import panics_as

#: of llguidance's units, by which its expressions may grow at first; its default of a million lets ``(a{1000}){1000}``
#: take four seconds a mask, and this a fifth of one. Schemas of 500 patterns and choices of 20,000 words need less.
LEXER_FUEL = 200_000


class GrammarCompiler:
    """Compiles grammars for one vocabulary.

    Args:
        tokenizer_json: contents of ``tokenizer.json``.
        vocab_size: V, columns of the logits (may exceed the tokenizer's entries).
        eos_token_ids: the tokens that may follow a complete output.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise EnvironmentLacks(
                "TF-RUN-088",
                "guided decoding needs the llguidance package",
                asked="a guided request",
                why="grammars are matched against the vocabulary by that library",
                remedies=["pip install 'trtforge[guided]'", "leave the grammar out"],
            ) from error
        self._library: Any = llguidance
        eos = eos_token_ids[0] if eos_token_ids else None
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos)
        self._eos = tuple(eos_token_ids)

    def compile(self, guide: GuidedDecoding) -> GuidedState:
        """A fresh state at the grammar's start.

        Raises:
            ForgeError: ``TF-RUN-087`` when the grammar is invalid or not supported.
        """
        matcher_class = self._library.LLMatcher
        try:
            if guide.json_schema is not None:
                schema = guide.json_schema if isinstance(guide.json_schema, str) else json.dumps(guide.json_schema)
                grammar = matcher_class.grammar_from_json_schema(schema)
            elif guide.regex is not None:
                grammar = matcher_class.grammar_from_regex(guide.regex)
            elif guide.grammar is not None:
                grammar = matcher_class.grammar_from_lark(_lark(guide, guide.grammar))
            else:
                choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in guide.choice or ())
                grammar = matcher_class.grammar_from_lark(f"start: {choices}")
            limits = self._library.LLParserLimits(initial_lexer_fuel=LEXER_FUEL)
            with panics_as(ValueError):
                matcher = matcher_class(self._tokenizer, grammar, log_level=0, limits=limits)
                matcher.compute_bitmask()
        # TypeError: a schema with values that JSON does not have; RecursionError: one that holds itself
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad_grammar(guide, str(error)) from error
        if matcher.is_error():
            raise _bad_grammar(guide, matcher.get_error())
        return GuidedState(matcher, self._eos)


def _lark(guide: GuidedDecoding, grammar: str) -> str:
    """An EBNF grammar as Lark; what is wrong with it is the client's, whatever the converter raises."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # the converter raises Exception itself, among others
        raise _bad_grammar(guide, str(error)) from error


class GuidedState:
    """Where one sample stands in its grammar."""

    __slots__ = ("_eos", "_matcher")

    def __init__(self, matcher: Any, eos_token_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos = eos_token_ids

    def fork(self) -> GuidedState:
        return GuidedState(self._matcher.deep_copy(), self._eos)

    def allowed(self, width: int) -> npt.NDArray[np.bool_]:
        """Tokens that may come next, bool [width]; end-of-sequence tokens where the output may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return np.zeros(width, dtype=bool)  # its own row gets no token; the library would end it as complete
        mask = np.unpackbits(bits, bitorder="little")[:width].astype(bool)
        if len(mask) < width:
            mask = np.pad(mask, (0, width - len(mask)))
        if self._matcher.is_accepting():
            mask[[token for token in self._eos if token < width]] = True
        return mask

    def admits(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, in order, could follow here; nothing changes by asking.

        An end of the output counts as none: what it would be drafted for ends anyway.
        """
        # a copy (a microsecond): what only a draft unfolds of the grammar must not count against its limits
        return max(0, int(self._matcher.deep_copy().validate_tokens(list(tokens))))

    def failure(self) -> str:
        """Why the grammar can hold no further token; empty while it can."""
        return _reason(self._matcher.get_error()) if self._matcher.is_error() else ""

    def accept(self, token: int) -> bool:
        """Advance by a chosen token; True when nothing can follow any more."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())


def _reason(detail: str) -> str:
    """The library's own sentence, without the dump of its state behind it."""
    reason = detail.partition("<state>")[0].strip()
    return "no text satisfies it" if reason == "NoExtensionBias" else reason


def _bad_grammar(guide: GuidedDecoding, detail: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-087",
        f"the grammar does not compile: {_reason(detail)}",
        asked=short_repr(guide),
        why="the output could not be held to it",
        remedies=["check the schema or expression", "see llguidance's documentation for the supported keywords"],
    )
