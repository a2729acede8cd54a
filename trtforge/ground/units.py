"""Sizes, times and percentages as recipes write them: a number with its unit.

Policy: in a recipe file a size or a time without a unit is refused, because the unit decides a factor
of a thousand or a billion; values that are already bytes or seconds pass when code builds a section
itself. Shares may be written ``5%`` or ``0.05``; a bare number above 1 is refused, since ``5`` for
five per cent is the common slip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

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
_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z%]*)\s*", re.ASCII)

#: key of the validation context that says "these values were written by a person"
WRITTEN = "written"


def _quantity(value: Any, kind: str, units: Mapping[str, float]) -> tuple[Decimal, str]:
    """A number and its unit, one of ``units``."""
    known = ", ".join(units)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no {kind}; write a number and a unit ({known})")
    if match[2] not in units:
        raise ValueError(f"{value!r} has no known unit; use one of {known}")
    return Decimal(match[1]), match[2]


def parse_size(value: Any) -> int:
    """Bytes of ``"1GiB"``, ``"512 MiB"`` or ``"64GB"``; an ``int`` is taken as bytes already."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    number, unit = _quantity(value, "size", _SIZE_UNITS)
    return int(number * _SIZE_UNITS[unit])


def parse_seconds(value: Any) -> float:
    """Seconds of ``"200ms"``, ``"2s"`` or ``"1.5min"``; a ``float`` is taken as seconds already."""
    if isinstance(value, float) and math.isfinite(value) and value >= 0:
        return value
    number, unit = _quantity(value, "time", _TIME_UNITS)
    return float(number) * _TIME_UNITS[unit]


def parse_fraction(value: Any) -> float:
    """A share of 1 from ``"5%"`` or ``0.05``; a bare number above 1 is refused."""
    written = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if written is not None and written[2] == "%":
        return float(written[1]) / 100.0
    share = math.nan
    if written is not None and not written[2]:
        share = float(written[1])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    if not (math.isfinite(share) and share >= 0):
        raise ValueError(f"{value!r} is no share; write a percentage such as 5% or a number such as 0.05")
    if share > 1:
        raise ValueError(
            f"{value!r} would be {share:.0%}; write {share:g}% or {share / 100:g}, or {share:.0%} to mean it"
        )
    return share


def format_size(size: int) -> str:
    """``1073741824`` as ``1.00 GiB``; binary units, two decimals."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.2f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """``0.25`` as ``250 ms``, ``75`` as ``1 min 15 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _needs_unit(value: Any, info: ValidationInfo, kind: str, example: str) -> None:
    written = bool(info.context and info.context.get(WRITTEN))
    if written and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value!r} has no unit; a {kind} carries one, for example {example}")


def _size_field(value: Any, info: ValidationInfo) -> int:
    _needs_unit(value, info, "size", "256MiB")
    return parse_size(value)


def _seconds_field(value: Any, info: ValidationInfo) -> float:
    _needs_unit(value, info, "time", "200ms")
    return parse_seconds(value)


Size = Annotated[
    int,
    BeforeValidator(_size_field),
    PlainSerializer(lambda v: f"{v}B", return_type=str, when_used="json"),
    WithJsonSchema(
        {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(_SIZE_UNITS)})$", "examples": ["256MiB"]}
    ),
]
Seconds = Annotated[
    float,
    BeforeValidator(_seconds_field),
    PlainSerializer(
        lambda v: f"{v:.9g}s" if v >= 1e-4 or v == 0 else f"{v * 1e6:.9f}us", return_type=str, when_used="json"
    ),
    WithJsonSchema(
        {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)? ?({'|'.join(_TIME_UNITS)})$", "examples": ["200ms"]}
    ),
]
Fraction = Annotated[
    float,
    BeforeValidator(parse_fraction),
    PlainSerializer(lambda v: v if v <= 1 else f"{v * 100:.9g}%", when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?%$"},
            ]
        }
    ),
]
