"""Sizes as plans print them."""

from __future__ import annotations


def size(value: float) -> str:
    """Bytes for people: GiB with two decimals, MiB or KiB below a tenth of it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale / 10:
            return f"{value / scale:,.2f} {unit}"
    return f"{value:,.0f} B"
