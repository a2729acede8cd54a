"""Gates: a limit from the recipe held against a measured figure.

Policy: a gate is compared with the bound of the figure's confidence interval that is worse for the
candidate, so that a figure too noisy to support the claim does not pass it.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.statistics import Interval
from trtforge.ground.errors import GateFailed
from trtforge.store.artifact import GateResult


def at_most(name: str, interval: Interval, limit: float, unit: str = "") -> GateResult:
    """Passes when the interval's upper bound is within ``limit``."""
    passed = interval.high <= limit
    sign = "<=" if passed else ">"
    if interval.low == interval.high:
        detail = f"{name} is {interval.value:.4g}{unit} {sign} limit {limit:.4g}{unit}"
    else:
        detail = (
            f"{name} is {interval.value:.4g}{unit}, {interval.confidence:.0%} interval "
            f"[{interval.low:.4g}, {interval.high:.4g}]{unit}; upper bound {interval.high:.4g}{unit} "
            f"{sign} limit {limit:.4g}{unit}"
        )
    return GateResult(
        name=name, passed=passed, measured=interval.value, limit=limit, detail=detail, bound=interval.high
    )


def at_least(name: str, measured: float, limit: float, detail: str = "") -> GateResult:
    """Passes when ``measured`` reaches ``limit``."""
    passed = measured >= limit
    text = f"{name} is {measured:.4g}; {'>=' if passed else '<'} limit {limit:.4g}"
    return GateResult(name=name, passed=passed, measured=measured, limit=limit, detail=detail or text)


def require(gates: Sequence[GateResult], remedies: Sequence[str] = ()) -> None:
    """Raise :class:`GateFailed` (TF-EVL-010) naming every gate that was missed."""
    missed = [gate for gate in gates if not gate.passed]
    if missed:
        raise GateFailed(
            "TF-EVL-010",
            f"{len(missed)} gate{'s' if len(missed) > 1 else ''} missed: {', '.join(gate.name for gate in missed)}",
            numbers={gate.name: gate.figures() for gate in missed},
            why="; ".join(gate.detail for gate in missed),
            remedies=list(remedies),
        )
