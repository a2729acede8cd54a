"""What a draft of so many tokens takes, in passes as they were measured at load: a line, learned from all lengths.

A first pass also catches up with the target's states, and every pass has its Python: neither was measured. A figure of
its own for each length would stay as the first cold drafts made it wherever that length is passed over; a line is moved
by those that are taken. Levels of a tree are passes of many rows, so trees have a figure of their own.
"""

from __future__ import annotations

import math
from typing import Any

#: drafts after which a time counts 1/e, and the weight of the assumption that all passes are alike
_MEMORY, _TRUST = 80.0, 0.25
#: passes of the two lengths that the assumption speaks of
_ASSUMED = (1, 4)
#: least of a first pass, and of a further one
_LEAST_FIRST, _LEAST_NEXT = 0.2, 0.1


class DraftTimes:
    """Times of drafts over those of their passes, each the machine's present speed aside."""

    def __init__(self) -> None:
        # weights, tokens beyond the first, their squares, times, products
        self._sums = [0.0] * 5
        self._first = self._next = 1.0
        #: by depth: time over the passes', and times seen
        self._trees: dict[int, list[float]] = {}

    def chain(self, length: Any) -> Any:
        """Passes that a chain of ``length`` tokens takes as long as: a float, or an array of them of an array."""
        return self._first + self._next * (length - 1)

    def tree(self, depth: int) -> float:
        """Passes that a tree of ``depth`` levels takes as long as."""
        known = self._trees.get(depth)
        return depth * math.exp(known[0]) if known else float(depth)

    def seen_chain(self, length: int, passes: float) -> None:
        """A chain took as long as ``passes``."""
        keep = math.exp(-1 / _MEMORY)
        x = length - 1
        new = (1.0, float(x), float(x * x), passes, x * passes)
        self._sums = [keep * old + value for old, value in zip(self._sums, new, strict=True)]
        n, sx, sxx, sy, sxy = self._sums
        for assumed in _ASSUMED:
            x = assumed - 1
            # all passes alike, at the level of what was seen
            level = assumed * sy / (n + sx)
            n, sx, sxx, sy, sxy = (
                n + _TRUST,
                sx + _TRUST * x,
                sxx + _TRUST * x * x,
                sy + _TRUST * level,
                sxy + _TRUST * x * level,
            )
        spread = n * sxx - sx * sx
        self._next = max((n * sxy - sx * sy) / spread, _LEAST_NEXT)
        self._first = max((sy - self._next * sx) / n, _LEAST_FIRST)

    def seen_tree(self, depth: int, off: float) -> None:
        """A tree took e to the ``off`` times what was thought."""
        own = self._trees.setdefault(depth, [0.0, 0.0])
        own[0] += off * max(0.02, 1 / (own[1] + 2))
        own[1] += 1
