"""Costs: the formula, and that what prompts and answers cost together is what the GPUs cost."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.planner.cost import Rates, cost_per_million, costs, sensitivity
from tests.support.refusals import refusal

_rates = st.builds(Rates, st.integers(1, 64), st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 1))


def test_a_gpu_at_three_dollars_sixty() -> None:
    # $3.60 an hour is a tenth of a cent a second: at 1,000 tokens/s a million tokens take 1,000 s, one dollar
    assert cost_per_million(1, 3.60, 1000) == pytest.approx(1.0)
    assert cost_per_million(8, 3.60, 8000) == pytest.approx(1.0)
    assert cost_per_million(1, 3.60, 1000, utilization=0.5) == pytest.approx(2.0)


@given(_rates, st.floats(0.01, 100), st.floats(0.01, 1))
def test_prompts_and_answers_pay_for_the_gpus(rates: Rates, price: float, utilization: float) -> None:
    found = costs(rates, price, utilization)
    second = found.input * rates.input / 1e6 + found.output * rates.output / 1e6
    assert second * utilization == pytest.approx(rates.gpus * price / 3600)
    assert found.blended * (rates.input + rates.output) / 1e6 == pytest.approx(second)
    assert found.hour == pytest.approx(rates.gpus * price)


@given(_rates)
def test_without_a_price_costs_are_gpu_hours(rates: Rates) -> None:
    found = costs(rates, None)
    assert found.unit == "GPU-hours"
    assert found.blended == pytest.approx(costs(rates, 1.0).blended)


def test_sensitivity_is_relative_to_the_plan() -> None:
    rates = Rates(8, 10_000, 2_000, 0.3)
    half = Rates(8, 5_000, 1_000, 0.3)
    rows = sensitivity(rates, 2.0, 0.8, [("batch", "half", half)])
    by_name = {(row.quantity, row.change): row.ratio for row in rows}
    assert by_name["price a GPU-hour", "1.00"] == pytest.approx(0.5)
    assert by_name["utilization", "50%"] == pytest.approx(1.6)
    assert ("utilization", "80%") not in by_name
    assert by_name["batch", "half"] == pytest.approx(2.0)
    assert not any(row.quantity == "price a GPU-hour" for row in sensitivity(rates, None, 1.0, []))


def test_a_price_of_nothing_changes_no_ratio() -> None:
    rates = Rates(8, 10_000, 2_000, 0.3)
    changes = [("batch", "half", Rates(8, 5_000, 1_000, 0.3))]
    free, paid = (
        {(row.quantity, row.change): row.ratio for row in sensitivity(rates, price, 0.8, changes)} for price in (0, 2)
    )
    assert free and all(ratio == pytest.approx(paid[key]) for key, ratio in free.items())


@pytest.mark.parametrize(
    ("price", "rate", "share"),
    [(-1, 10, 1), (math.nan, 10, 1), (math.inf, 10, 1), (1, 0, 1), (1, 10, 0), (1, 10, 1.5), (1, 10, math.nan)],
)
def test_numbers_outside_their_range(price: float, rate: float, share: float) -> None:
    error = refusal(cost_per_million, 1, price, rate, share)
    assert error.code == "TF-PLN-055"
    json.dumps(error.to_json(), allow_nan=False)
