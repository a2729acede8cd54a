"""The name that a wrong one most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to ``name``, case and ``-``/``_`` aside; None when none is near."""
    normal = {candidate.lower().replace("-", "_"): candidate for candidate in sorted(known, reverse=True)}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), list(normal), n=1, cutoff=cutoff)
    return normal[found[0]] if found else None
