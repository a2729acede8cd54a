"""What a million tokens cost on a plan: GPU time, its price, and what the price is most sensitive to.

Policy: a price is given, never assumed; without one the plan counts GPU-hours. Input and output tokens share a
replica, so its time is divided between them by what the prompts add to the steps: input and output cost together
are exactly what the GPUs cost for the load (a test holds it).

Formula: cost of 10^6 tokens = GPUs · $/GPU-hour / 3600 / (tokens a second · utilization) · 10^6, where utilization
is the share of the hour in which the load is there. Source of the shape: Pope et al., 2022,
https://arxiv.org/abs/2211.05102, section 2 (cost as chip-seconds a token).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.planner.types import bad_input

MILLION = 1e6
#: beyond these a figure is a slip of the hand, and products of several leave floating point
MOST_PRICE, LEAST_UTILIZATION = 1e6, 1e-6


@dataclass(frozen=True)
class Rates:
    """What a deployment does a second at full load: ``requests``, prompt and answer tokens, time share of prompts.

    ``gpus`` are all GPUs of all replicas that do it.
    """

    gpus: int
    input: float
    output: float
    input_share: float


@dataclass(frozen=True)
class Costs:
    """Of a million tokens; the unit is the price's, or GPU-hours without a price.

    ``input`` and ``output`` of 10^6 prompt and 10^6 answer tokens, ``blended`` of 10^6 tokens of the load's own
    mixture, ``hour`` of the deployment.
    """

    input: float
    output: float
    blended: float
    hour: float
    unit: str

    def to_json(self) -> dict[str, Any]:
        """The figures as one JSON-able object."""
        return {
            "input_per_million": self.input,
            "output_per_million": self.output,
            "blended_per_million": self.blended,
            "deployment_hour": self.hour,
            "unit": self.unit,
        }


def cost_per_million(gpus: float, price: float, tokens_per_second: float, utilization: float = 1.0) -> float:
    """Cost of 10^6 tokens: GPUs · price / 3600 / (tokens a second · utilization) · 10^6.

    Args:
        price: of one GPU-hour.
        tokens_per_second: of all the GPUs at full load.

    Raises:
        ForgeError: ``TF-PLN-055`` a price, rate or utilization outside its range.
    """
    _check(price, utilization)
    if not tokens_per_second > 0:
        raise _bad("tokens a second", tokens_per_second, "a positive rate")
    return gpus * price / 3600 / (tokens_per_second * utilization) * MILLION


def costs(rates: Rates, price: float | None, utilization: float = 1.0) -> Costs:
    """Costs of a deployment; ``price`` None counts GPU-hours.

    Raises:
        ForgeError: ``TF-PLN-055`` a price or utilization outside its range.
    """
    unit = "GPU-hours" if price is None else "$"
    each = 1.0 if price is None else price
    total = rates.input + rates.output
    blended = cost_per_million(rates.gpus, each, total, utilization)
    return Costs(
        input=blended * rates.input_share * total / rates.input,
        output=blended * (1 - rates.input_share) * total / rates.output,
        blended=blended,
        hour=rates.gpus * each,
        unit=unit,
    )


@dataclass(frozen=True)
class Sensitivity:
    """The blended cost when one quantity changes: ``change`` in words, cost, and its ratio to the plan's."""

    quantity: str
    change: str
    blended: float
    ratio: float


def sensitivity(
    rates: Rates, price: float | None, utilization: float, variants: Sequence[tuple[str, str, Rates]]
) -> list[Sensitivity]:
    """What moves the cost: price and utilization by rule, and ``variants`` (quantity, change, rates then)."""
    rows: list[Sensitivity] = []
    # ratios are taken in GPU-hours, so a price of nothing has them too
    base = costs(rates, None, utilization).blended

    def add(quantity: str, change: str, then: Rates, share: float) -> None:
        ratio = costs(then, None, share).blended / base
        rows.append(Sensitivity(quantity, change, costs(then, price, share).blended, ratio))

    if price:
        for factor in (0.5, 0.75, 1.25):
            cost = costs(rates, price * factor, utilization).blended
            rows.append(Sensitivity("price a GPU-hour", f"{price * factor:.2f}", cost, factor))
    for share in (0.3, 0.5, 0.8):
        if abs(share - utilization) > 1e-9:
            add("utilization", f"{share:.0%}", rates, share)
    for quantity, change, then in variants:
        add(quantity, change, then, utilization)
    return rows


def _check(price: float, utilization: float) -> None:
    if not 0 <= price <= MOST_PRICE:
        raise _bad("price", price, f"0 to {MOST_PRICE:,.0f} dollars a GPU-hour")
    if not LEAST_UTILIZATION <= utilization <= 1:
        raise _bad("utilization", utilization, f"a share from {LEAST_UTILIZATION:g} to 1, for example 0.6")


def _bad(what: str, value: float, allowed: str) -> Exception:
    return bad_input(
        "TF-PLN-055",
        f"The {what} is {value:g}",
        asked=f"{what} {value:g}",
        why="Costs are prices over rates.",
        remedies=[f"Give {allowed}"],
        value=value if math.isfinite(value) else str(value),
    )
