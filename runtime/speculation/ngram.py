"""Drafts without a model: what followed when the text's end occurred in it before (prompt look-up).

Each sequence has a suffix automaton over its prompt and output. The draft is the text behind the place at which the
longest repeated end of the text occurred last; where that runs into the end itself, the draft goes on from its own
tokens, so that a text that repeats a phrase is drafted on as a repetition. On answers of a small chat model the last
place was the best in every class of match (before the first and before the most frequent continuation), and the
chance of the first token rose from 0.2 for a match of one token over 0.55 for two to 0.98 for sixteen: a draft's source
names the class, so that each has an acceptance of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Ask, Computed, Draft, TapReader
from runtime.speculation.suffix_automaton import SuffixAutomaton

#: the smallest match of each class, and the class's source
_CLASSES = (1, 2, 3, 4, 8, 16)
SOURCES = ("ngram/1", "ngram/2", "ngram/3", "ngram/4-7", "ngram/8-15", "ngram/16+")

#: tokens taken into automata in one call, about a millisecond's worth: a long prompt is taken in over several steps
TOKENS_A_CALL = 1024
#: tokens that one sequence's automaton holds (about 400 bytes each); past them it starts anew with the last half
MOST_TOKENS = 32768


def sources_of(least: int) -> list[str]:
    """The sources of drafts whose match has at least ``least`` tokens."""
    return list(SOURCES[bisect_right(_CLASSES, least) - 1 :])


def source_of(length: int) -> str:
    """The source of drafts whose match has ``length`` tokens (at least 1)."""
    return SOURCES[bisect_right(_CLASSES, length) - 1]


class _Index:
    """The automaton of one sequence; ``start`` is where its text begins in the sequence."""

    __slots__ = ("automaton", "start")

    def __init__(self, start: int = 0, automaton: SuffixAutomaton | None = None) -> None:
        self.start = start
        self.automaton = automaton or SuffixAutomaton()

    @property
    def known(self) -> int:
        """Tokens of the sequence that have been taken in or left out."""
        return self.start + self.automaton.size

    def catch_up(self, sequence: TokenSequence, budget: int) -> int:
        """Take in at most ``budget`` known tokens; how many it took."""
        if self.automaton.size >= MOST_TOKENS:
            self.start, self.automaton = self.known - MOST_TOKENS // 2, SuffixAutomaton()
        first = self.known
        taken = min(sequence.length - first, budget, MOST_TOKENS - self.automaton.size)
        if taken > 0:
            self.automaton.extend(sequence.tokens[first : first + taken].tolist())
        return max(taken, 0)


class NgramDrafter:
    """Drafter that looks the end of each sequence up in its own text.

    Preemption changes no text, so nothing happens then. A sequence whose prompt is not wholly taken in yet gets no
    draft.

    Args:
        max_matching_ngram_size: tokens of the text's end that are looked up at most, as TensorRT-LLM names it.
        min_matching_ngram_size: a shorter match gives no draft.
    """

    name = "ngram"

    def __init__(self, max_matching_ngram_size: int = 8, min_matching_ngram_size: int = 2) -> None:
        self.most = max_matching_ngram_size
        self.least = min_matching_ngram_size
        self._indexes: dict[TokenSequence, _Index] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        """A chain of ``count`` tokens for each ask whose text's end occurred before (a tree is not made)."""
        self._catch_up([ask.sequence for ask in asks])
        return [self._draft(ask) if ask.count > 0 else None for ask in asks]

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        """Take in what is known of the sequences that may be drafted for, prompts slice by slice."""
        self._catch_up([one.sequence for one in computed if one.speculates])

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        """Children begin with a copy of the parent's automaton."""
        index = self._indexes.get(parent)
        if index is not None:
            for child in children:
                self._indexes[child] = _Index(index.start, index.automaton.copy())

    def leave(self, sequence: TokenSequence) -> None:
        """Drop the sequence's automaton."""
        self._indexes.pop(sequence, None)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Nothing lies in blocks here."""

    def describe(self) -> dict[str, Any]:
        """Sizes looked up, sequences and tokens held."""
        return {
            "drafter": self.name,
            "max_matching_ngram_size": self.most,
            "min_matching_ngram_size": self.least,
            "sequences": len(self._indexes),
            "tokens": sum(index.automaton.size for index in self._indexes.values()),
        }

    def close(self) -> None:
        """Drop every automaton."""
        self._indexes.clear()

    def _catch_up(self, sequences: Sequence[TokenSequence]) -> None:
        budget = TOKENS_A_CALL
        # The nearest to being whole first, so that one long prompt does not keep the others' drafts waiting.
        indexes = [(self._indexes.setdefault(sequence, _Index()), sequence) for sequence in sequences]
        for index, sequence in sorted(indexes, key=lambda pair: pair[1].length - pair[0].known):
            budget -= index.catch_up(sequence, budget)
            if budget <= 0:
                return

    def _draft(self, ask: Ask) -> Draft | None:
        sequence, index = ask.sequence, self._indexes[ask.sequence]
        if index.known < sequence.length:
            return None
        match = index.automaton.match(self.most)
        if match.length < self.least:
            return None
        first, length = index.start + match.end, sequence.length
        tokens = sequence.tokens[first : min(first + ask.count, length)]
        if len(tokens) < ask.count:
            tokens = np.resize(sequence.tokens[first:length], ask.count)
        return Draft(tokens.copy(), source_of(match.length))
