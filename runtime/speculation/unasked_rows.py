"""How many rows a drafter computes for sequences that nobody asked it to draft for.

Rows of answers are good for nothing but drafts: of the sequence itself, and of a later turn that shares its blocks.
Where drafting pays they are computed as they come; where the policy leaves it off, a batch of many requests say, they
would cost a few per cent of the time for nothing. So they are earned: by drafts that were asked for, in plenty, and a
little by every decoded token, so that some sequences stay warm for the policy to try.
"""

from __future__ import annotations

#: rows that a draft earns, and a decoded token
_BY_DRAFT, _BY_TOKEN = 16, 1 / 8
#: rows that can be saved up
_SAVED = 256.0


class UnaskedRows:
    """An account of rows; it may be overdrawn once, and is then made good."""

    def __init__(self) -> None:
        self._saved = _SAVED

    def __bool__(self) -> bool:
        """Whether rows may be computed now."""
        return self._saved > 0

    def earn(self, *, drafts: int = 0, tokens: int = 0) -> None:
        """Drafts were asked for, or tokens decoded."""
        self._saved = min(self._saved + _BY_DRAFT * drafts + _BY_TOKEN * tokens, _SAVED)

    def spend(self, rows: int) -> None:
        """Rows were computed for sequences that nobody asked for."""
        self._saved -= rows
