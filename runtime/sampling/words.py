"""Stop and bad words on text, wherever token borders fall.

Policy: the result depends on the characters only, never on how they arrive. A stop text that may still
complete is held back, so that a client never sees part of one; when several complete, the one that
ends first wins, and of those the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StopMatcher:
    """Releases text up to a stop text. ``push`` pieces as they are decoded, then ``finish``.

    Args:
        stops: stop texts, none empty.
        include: keep the stop text in the output.
    """

    __slots__ = ("_beginnings", "_endings", "_held", "_include", "_inner", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(s) for s in stops), default=0)
        #: last characters of stop texts; their proper beginnings, and the last characters of these
        self._endings = frozenset(s[-1] for s in stops)
        self._beginnings = frozenset(s[:length] for s in stops for length in range(1, len(s)))
        self._inner = frozenset(beginning[-1] for beginning in self._beginnings)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str, *, armed: bool = True) -> str:
        """Text that is safe to show after ``piece``; sets :attr:`matched` when a stop text completed.

        Args:
            piece: newly decoded text.
            armed: False while min_tokens is not reached: texts completing within ``piece`` are let through.
        """
        if not self._stops:
            return piece
        text, old = self._held + piece, len(self._held)
        if armed and not self._endings.isdisjoint(piece):
            found = self._first(text, old)
            if found is not None:
                start, stop = found
                self.matched, self._held = stop, ""
                return text[: start + len(stop)] if self._include else text[:start]
        keep = self._tail(text)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep] if keep else text

    def completes(self, piece: str) -> bool:
        """Whether a stop text would complete within ``piece``; changes nothing."""
        if self._endings.isdisjoint(piece):
            return False
        return self._first(self._held + piece, len(self._held)) is not None

    def finish(self) -> str:
        """What was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, old: int) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            # Only matches that end in the new piece: earlier ones were let through on purpose.
            start = text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                if best is None or candidate[:2] < best[:2]:
                    best = candidate
        return None if best is None else (best[1], best[2])

    def _tail(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop text."""
        if not text or text[-1] not in self._inner:
            return 0
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0


class BadWordFilter:
    """Says whether a token would complete a forbidden text.

    Args:
        words: forbidden texts, none empty.
        peek: the text that appending a token would add (see ``Detokenizer.peek``).
    """

    __slots__ = ("_keep", "_peek", "_tail", "_words")

    def __init__(self, words: Sequence[str], peek: Callable[[int], str]) -> None:
        self._words = tuple(words)
        self._keep = max(len(w) for w in words) - 1
        self._peek = peek
        self._tail = ""

    def completes(self, token: int) -> bool:
        """Whether the output would contain a forbidden text once ``token`` is appended."""
        piece = self._peek(token)
        if not piece:
            return False
        text = self._tail + piece
        return any(word in text for word in self._words)

    def push(self, piece: str) -> None:
        """Record text that was appended."""
        if piece and self._keep:
            self._tail = (self._tail + piece)[-self._keep :]
