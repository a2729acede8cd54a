"""How often a test repeats what takes seconds each time: enough by default, more with ``THOROUGH=1``.

Each of these tests draws places or moments from a seed; the thorough run draws more of them, the first ones the same.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def often(usual: T, thorough: T) -> T:
    """``usual``, or ``thorough`` where a thorough run is asked for."""
    return thorough if os.environ.get("THOROUGH") == "1" else usual
