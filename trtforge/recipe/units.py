"""Sizes, times and percentages as recipes write them: a number with its unit."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*$")


def _split(text: str, kind: str, units: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no {kind}; write a number and a unit ({units})")
    return float(match.group(1)), match.group(2)


def parse_size(value: Any) -> int:
    """Bytes of ``"1GiB"``, ``"512 MiB"`` or ``"64GB"``; a bare number is refused (the unit decides a factor of 2^30)."""
    if isinstance(value, bool) or not isinstance(value, str):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value  # already bytes: an internal value, never from YAML text with a unit
        raise ValueError(f"{value!r} is no size; write a number and a unit ({', '.join(_SIZE_UNITS)})")
    number, unit = _split(value, "size", ", ".join(_SIZE_UNITS))
    if unit not in _SIZE_UNITS:
        raise ValueError(f"{value!r} has no known unit; use one of {', '.join(_SIZE_UNITS)}")
    return int(number * _SIZE_UNITS[unit])


def parse_seconds(value: Any) -> float:
    """Seconds of ``"200ms"``, ``"2s"`` or ``"1.5min"``."""
    if isinstance(value, float):
        return value  # already seconds: an internal value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no time; write a number and a unit ({', '.join(_TIME_UNITS)})")
    number, unit = _split(value, "time", ", ".join(_TIME_UNITS))
    if unit not in _TIME_UNITS:
        raise ValueError(f"{value!r} has no known unit; use one of {', '.join(_TIME_UNITS)}")
    return number * _TIME_UNITS[unit]


def parse_fraction(value: Any) -> float:
    """A fraction of 1 from ``"5%"`` or ``0.05``."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        number, unit = _split(value, "fraction", "%")
        if unit == "%":
            return number / 100.0
        if unit == "":
            return number
    raise ValueError(f"{value!r} is no fraction; write a percentage such as 5% or a number such as 0.05")


def format_size(size: int) -> str:
    """``1073741824`` as ``1.00 GiB``; binary units, two decimals."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.2f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(lambda v: f"{v}B", return_type=str, when_used="json")]
Seconds = Annotated[
    float, BeforeValidator(parse_seconds), PlainSerializer(lambda v: f"{v:.9g}s", return_type=str, when_used="json")
]
Fraction = Annotated[float, BeforeValidator(parse_fraction)]
