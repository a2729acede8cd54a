"""Search: every combination of precision, split, batch, KV format and speculation, the front, the recommendation.

Policy: a point that does not fit or breaks arithmetic is counted, never timed. What nobody measured is judged at its
worse end: an assumed acceptance at its low one. Quality is not searched: the recipe's own gates judge it.
"""

from builder.planner.search.choose import Choice, Slo, choose, pareto
from builder.planner.search.points import Found, Point, evaluate
from builder.planner.search.space import Space, default_space

__all__ = ["Choice", "Found", "Point", "Slo", "Space", "choose", "default_space", "evaluate", "pareto"]
