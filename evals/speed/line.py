"""A line through the closed loop's levels: the time of a step T(B) = a + b · B over B requests in flight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evals.speed.latency import LevelResult
from trtforge.recipe.schema_bench import Slo

#: through two points every line is exact
_LEAST_LEVELS = 3


@dataclass(frozen=True)
class Line:
    """``a`` seconds a step and ``b`` seconds more a request, least squares over ``levels`` levels.

    Attributes:
        r_squared: share of the spread that the line explains.
        knee: a / b, the requests at which a step takes twice its fixed part; None where b is not positive.
        largest: most requests whose step stays inside ``bench.slo.itl_p99`` by the line; None without that limit or
            where b is not positive.
        beyond: ``largest`` is over the highest level measured.
    """

    a: float
    b: float
    r_squared: float
    levels: int
    knee: float | None
    largest: int | None
    beyond: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fit(levels: Sequence[LevelResult], slo: Slo | None) -> Line | None:
    """The line through the median token intervals of three or more levels; None where there are fewer."""
    points = [(level.concurrency, level.itl["p50"]) for level in levels if "p50" in level.itl]
    if len({at for at, _ in points}) < _LEAST_LEVELS:
        return None
    batch, seconds = np.array(points, dtype=np.float64).T
    b, a = (float(value) for value in np.polyfit(batch, seconds, 1))
    spread = float(np.sum((seconds - seconds.mean()) ** 2))
    left = float(np.sum((seconds - a - b * batch) ** 2))
    limit = None if slo is None else slo.itl_p99
    largest = None if limit is None or b <= 0 else max(0, math.floor((limit - a) / b + 1e-9))
    return Line(
        a=a,
        b=b,
        r_squared=1.0 if spread == 0 else 1 - left / spread,
        levels=len(points),
        knee=a / b if b > 0 and a > 0 else None,
        largest=largest,
        beyond=largest is not None and largest > float(batch.max()),
    )
