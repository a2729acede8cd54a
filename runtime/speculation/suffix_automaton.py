"""The longest end of a text that occurred in it before, kept up token by token.

The suffix automaton of a text has one state for every set of places at which some substring ends; the suffix link of
the state of the whole text is the longest suffix that ends at another place too, which is the longest match. Adding
a token costs O(1) amortised, and a text of n tokens has fewer than 2 n states.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text", Theoretical Computer Science 40,
1985, https://doi.org/10.1016/0304-3975(85)90157-4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: suffix links that one token's place is noted along; a text that repeats one token has as many links as tokens
NOTED_LINKS = 16


class Match(NamedTuple):
    """The end of a text found again in it.

    Attributes:
        length: tokens of the longest suffix that occurred before; 0: not even the last token did.
        end: tokens of the text up to and with an earlier occurrence (it may overlap the suffix), so that the token
            at this place of the text is what followed.
    """

    length: int
    end: int


class SuffixAutomaton:
    """Suffix automaton over token ids that knows a recent place for every substring.

    A substring's place is where it ended last before the text's end. Behind :data:`NOTED_LINKS` longer repeated
    substrings of the same end it may be an older place, a true one always.
    """

    __slots__ = ("_ends", "_last", "_lengths", "_links", "_next", "size")

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        self._ends = [0]
        self._last = 0
        #: tokens taken in
        self.size = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in the text's next tokens."""
        edges, links, lengths, ends = self._next, self._links, self._lengths, self._ends
        last, size = self._last, self.size
        for token in tokens:
            # The end so far becomes a place like others only now: a match must lie before it.
            state = links[last]
            for _ in range(NOTED_LINKS):
                if state <= 0:
                    break
                ends[state] = size
                state = links[state]
            size += 1
            new = len(edges)
            edges.append({})
            lengths.append(size)
            ends.append(size)
            links.append(0)
            state = last
            while state >= 0 and token not in edges[state]:
                edges[state][token] = new
                state = links[state]
            if state >= 0:
                found, length = edges[state][token], lengths[state] + 1
                if lengths[found] == length:
                    links[new] = found
                else:
                    split = len(edges)
                    edges.append(edges[found].copy())
                    lengths.append(length)
                    ends.append(ends[found])
                    links.append(links[found])
                    links[found] = links[new] = split
                    while state >= 0 and edges[state].get(token) == found:
                        edges[state][token] = split
                        state = links[state]
            last = new
        self._last, self.size = last, size

    def match(self, most: int | None = None) -> Match:
        """The longest suffix that occurred before.

        Args:
            most: look for no more than so many tokens: the place is then where the suffix of ``most`` tokens ended
                last, which may be later than where the longest did. ``length`` is the longest's all the same.
        """
        state = self._links[self._last]
        if state <= 0:
            return Match(0, 0)
        length = self._lengths[state]
        if most is not None:
            for _ in range(NOTED_LINKS):
                link = self._links[state]
                if self._lengths[link] < most:
                    break
                state = link
        return Match(length, self._ends[state])

    def copy(self) -> SuffixAutomaton:
        """An automaton of the same text that goes on by itself."""
        other = SuffixAutomaton()
        other._next = [edges.copy() for edges in self._next]
        other._links, other._lengths, other._ends = self._links[:], self._lengths[:], self._ends[:]
        other._last, other.size = self._last, self.size
        return other
