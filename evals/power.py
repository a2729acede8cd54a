"""What a gate's sample can decide, said before anything is measured.

A gate is held against the worse bound of an interval. A small sample has a wide interval even when every item of it is
perfect, so a gate may be out of reach of any candidate: it would fail whatever is measured, and says nothing.
"""

from __future__ import annotations

import math
from statistics import NormalDist

#: tokens of a parity prompt at most: 16 prompts give 2,048 positions, enough to tell 99 % from 99.5 %
PROMPT_TOKENS = 128
#: two-sided, as in :data:`evals.statistics.CONFIDENCE`
_Z = NormalDist().inv_cdf((1 + 0.95) / 2)


def positions_for_agreement(limit: float) -> int | None:
    """Fewest positions at which perfect agreement proves a share of ``limit``; None: no number of them does.

    Wilson's lower bound of n of n is n / (n + z²).
    """
    if limit >= 1:
        return None
    return max(1, math.ceil(_Z**2 * limit / (1 - limit)))


def items_for_drop(limit: float) -> int | None:
    """Fewest items at which not one lost answer proves a drop of at most ``limit``; None: no number of them does.

    The upper bound of Agresti and Min's interval without any difference is z / (n + 2).
    """
    if limit <= 0:
        return None
    return max(1, math.ceil(_Z / limit - 2))


def agreement_in_reach(positions: int) -> float:
    """The largest share that so many positions, all in agreement, can prove."""
    return positions / (positions + _Z**2)


def drop_in_reach(items: int) -> float:
    """The smallest drop that so many items, none lost, can exclude."""
    return _Z / (items + 2)
