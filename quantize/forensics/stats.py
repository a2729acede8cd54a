"""What the values of a scale look like, in one pass over its bytes: counts of what must not be, smallest and largest.

Types of one and two bytes are counted by their codes, so that gigabytes of block scales cost a table lookup each and no
floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from trtforge.ground.e4m3 import decode

#: types whose values this module reads
READABLE = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "U8"})


@dataclass(frozen=True)
class Stats:
    """Of one tensor. ``smallest`` and ``largest`` of the finite values; ``tiny``: positive and not normal."""

    count: int
    nan: int
    infinite: int
    negative: int
    zero: int
    tiny: int
    smallest: float
    largest: float

    @property
    def bad(self) -> int:
        """Values that are not finite and positive."""
        return self.nan + self.infinite + self.negative + self.zero

    @property
    def constant(self) -> float | None:
        """The one value that all have."""
        return self.smallest if self.count and not self.nan and self.smallest == self.largest else None


@cache
def _table(dtype: str) -> npt.NDArray[np.float64]:
    """The value of every code of a type of one or two bytes."""
    if dtype == "F8_E4M3":
        return decode(np.arange(256, dtype=np.uint8)).astype(np.float64)
    if dtype in ("F8_E8M0", "U8"):
        codes = np.arange(256)
        return np.where(codes == 255, np.nan, 2.0 ** (codes - 127.0))
    codes = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs among the codes
        if dtype == "BF16":
            return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return codes.view(np.float16).astype(np.float64)


#: the smallest normal number of each type
_NORMAL = {"F8_E4M3": 2.0**-6, "F16": 2.0**-14, "BF16": 2.0**-126, "F32": 2.0**-126, "F64": 2.0**-1022}


def stats(dtype: str, raw: bytes) -> Stats:
    """Of the values of ``raw``; U8 and F8_E8M0 are powers of two."""
    values: npt.NDArray[np.float64]
    if dtype in ("F32", "F64"):
        values = np.frombuffer(raw, "<f4" if dtype == "F32" else "<f8").astype(np.float64)
        counts = np.ones(len(values), dtype=np.int64)
    else:
        codes = np.frombuffer(raw, "<u2" if dtype in ("F16", "BF16") else np.uint8)
        table = _table(dtype)
        found = np.bincount(codes, minlength=len(table))
        present = np.flatnonzero(found)
        values, counts = table[present], found[present]
    finite = np.isfinite(values)
    kept = values[finite]
    normal = _NORMAL.get(dtype, 0.0)
    return Stats(
        count=int(counts.sum()),
        nan=int(counts[np.isnan(values)].sum()),
        infinite=int(counts[np.isinf(values)].sum()),
        negative=int(counts[finite & (values < 0)].sum()),
        zero=int(counts[values == 0].sum()),
        tiny=int(counts[finite & (values > 0) & (values < normal)].sum()),
        smallest=float(kept.min()) if kept.size else float("nan"),
        largest=float(kept.max()) if kept.size else float("nan"),
    )
