"""E4M3 bytes under another scale: a table of 256 entries, so that a weight is re-rounded byte by byte."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
MAXIMUM = 448.0


@functools.cache
def _magnitudes() -> npt.NDArray[np.float64]:
    """The 127 finite magnitudes by code 0x00 … 0x7E (0x7F is NaN)."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.asarray(values, dtype=np.float64)


def decode(codes: Bytes) -> npt.NDArray[np.float32]:
    """E4M3 bytes as float32; 0x7F and 0xFF are NaN."""
    table = np.append(_magnitudes(), np.nan)
    return np.where(codes & 0x80, -table[codes & 0x7F], table[codes & 0x7F]).astype(np.float32)


def rescale_table(ratio: float) -> Bytes:
    """For every E4M3 byte the byte nearest to ``ratio`` times its value (ties to even, saturating, NaN stays)."""
    values = _magnitudes()
    wanted = np.minimum(values * ratio, MAXIMUM)
    right = np.clip(np.searchsorted(values, wanted), 1, len(values) - 1)
    below, above = wanted - values[right - 1], values[right] - wanted
    up = (above < below) | ((above == below) & (right % 2 == 0))
    positive = np.where(up, right, right - 1).astype(np.uint8)
    half = np.append(positive, np.uint8(0x7F))
    return np.concatenate([half, half | 0x80]).astype(np.uint8)


def largest_change(ratio: float) -> float:
    """The largest relative change of a value that is normal before and after it is rounded under another scale."""
    codes = np.arange(8, 0x7F, dtype=np.uint8)
    before = decode(codes).astype(np.float64) * ratio
    normal = before >= 2.0**-6
    after = decode(rescale_table(ratio)[codes]).astype(np.float64)
    return round(float(np.abs(after[normal] / before[normal] - 1).max(initial=0.0)), 6)
