"""Gates: a limit from the recipe held against a measured figure.

Policy: a gate is compared with the bound of the figure's confidence interval that is worse for the
candidate, so that a figure too noisy to support the claim does not pass it.
"""

from __future__ import annotations

from collections.abc import Sequence

from evals.statistics import Interval
from trtforge.ground.errors import GateFailed
from trtforge.store.artifact import GateResult


def at_most(
    name: str, interval: Interval, limit: float, unit: str = "", *, pair: tuple[float, float] | None = None
) -> GateResult:
    """Passes when the interval's upper bound is within ``limit``; ``pair`` is what baseline and candidate measured."""
    passed = interval.high <= limit
    return _stated(name, interval, interval.high, limit, passed, "<=" if passed else ">", unit, pair)


def bound_at_least(
    name: str, interval: Interval, limit: float, unit: str = "", *, pair: tuple[float, float] | None = None
) -> GateResult:
    """Passes when the interval's lower bound reaches ``limit``; ``pair`` as in :func:`at_most`."""
    passed = interval.low >= limit
    return _stated(name, interval, interval.low, limit, passed, ">=" if passed else "<", unit, pair)


def _stated(
    name: str,
    interval: Interval,
    bound: float,
    limit: float,
    passed: bool,
    sign: str,
    unit: str,
    pair: tuple[float, float] | None,
) -> GateResult:
    """Baseline, candidate, difference, interval, threshold and verdict, in words and as figures."""
    detail = f"{name} is {interval.value:.4g}{unit}"
    if pair is not None:
        detail += f" (baseline {pair[0]:.4g}, candidate {pair[1]:.4g})"
    if interval.low == interval.high:
        detail += f" {sign} limit {limit:.4g}{unit}"
    else:
        side = "upper" if bound == interval.high else "lower"
        detail += (
            f", {interval.confidence:.0%} interval [{interval.low:.4g}, {interval.high:.4g}]{unit}; "
            f"{side} bound {bound:.4g}{unit} {sign} limit {limit:.4g}{unit}"
        )
    baseline, candidate = pair or (None, None)
    return GateResult(
        name, passed, interval.value, limit, detail, bound, baseline, candidate, interval.low, interval.high
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
