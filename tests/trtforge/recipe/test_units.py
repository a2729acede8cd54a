"""Sizes, times and shares: what is read, what is refused, and that printing reads back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtforge.ground.units import format_size, parse_fraction, parse_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GiB", 2**30), ("512 MiB", 512 * 2**20), ("64GB", 64 * 10**9), ("0.5KiB", 512), ("7B", 7), (" 3kB ", 3000)],
)
def test_sizes_with_units(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["1", "GiB", "1 gib", "-1GiB", "1GiB2", "", "1e3MiB", "１GiB", None, True, 1.5, -3])
def test_sizes_refused(text: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**25))
def test_every_number_of_bytes_reads_back_exactly(size: int) -> None:
    assert parse_size(f"{size}B") == size


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_binary_units_scale_by_1024(number: int, unit: str) -> None:
    power = {"KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}[unit]
    assert parse_size(f"{number}{unit}") == number * 1024**power


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_reads_back_within_its_rounding(size: int) -> None:
    assert abs(parse_size(format_size(size)) - size) <= max(1, size * 0.006)


@pytest.mark.parametrize(
    ("text", "expected"), [("200ms", 0.2), ("2s", 2.0), ("1.5min", 90.0), ("1h", 3600.0), ("50us", 5e-5)]
)
def test_times_with_units(text: str, expected: float) -> None:
    assert math.isclose(parse_seconds(text), expected)


@pytest.mark.parametrize("text", ["2", "s", "2 sec", "-1s", None, 2, True, float("nan"), -1.0])
def test_times_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"unit|time"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("5%", 0.05), (0.05, 0.05), ("0.05", 0.05), ("150%", 1.5), (1, 1.0), ("0%", 0)]
)
def test_shares(text: object, expected: float) -> None:
    assert math.isclose(parse_fraction(text), expected)


@pytest.mark.parametrize("text", [5, "5", -0.1, "-5%", float("nan"), float("inf"), True, None, "5 percent", []])
def test_shares_refused(text: object) -> None:
    with pytest.raises(ValueError, match="%"):
        parse_fraction(text)


@given(st.floats(min_value=0, max_value=1))
def test_a_share_up_to_one_is_itself(share: float) -> None:
    assert parse_fraction(share) == share
