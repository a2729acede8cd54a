"""Tensors of a checkpoint in another float type, converted as they are written: no more than a chunk is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from trtforge.drafting.conversion import Part
from trtforge.errors import ForgeError

#: safetensors' float types as numpy has them
_NUMPY: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
#: a recipe's model.dtype as safetensors calls it
STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Converted(Part):
    """A part in another float type than its source's, rounded to nearest even."""

    name: str = ""
    source: Part | None = None

    def chunks(self) -> Iterator[bytes]:
        """The converted bytes.

        Raises:
            ForgeError: ``TF-GRF-021`` a value that the type cannot hold.
        """
        assert self.source is not None
        have, want = _NUMPY[self.source.dtype], _NUMPY[self.dtype]
        for chunk in self.source.chunks():
            values = np.frombuffer(chunk, dtype=have)
            with np.errstate(over="ignore"):
                converted = values.astype(want)
            if not np.array_equal(np.isfinite(converted), np.isfinite(values)):
                raise ForgeError(
                    "TF-GRF-021",
                    f"{self.name} of the draft has values that {self.dtype} cannot hold",
                    asked=f"model.dtype, which {self.name} is written in",
                    numbers={"largest": float(np.abs(values.astype(np.float64)).max()), "stored": self.source.dtype},
                    why="They would become infinite.",
                    remedies=["model.dtype: bfloat16", "model.dtype: float32"],
                )
            yield converted.tobytes()


def in_type(parts: dict[str, Part], dtype: str) -> dict[str, Part]:
    """The parts with every float tensor in the recipe's ``dtype``; what has that type already stays as it is."""
    wanted, result = STORED[dtype], {}
    for name, part in parts.items():
        if part.dtype not in _NUMPY or part.dtype == wanted:
            result[name] = part
        else:
            size = part.nbytes // _NUMPY[part.dtype].itemsize * _NUMPY[wanted].itemsize
            result[name] = Converted(wanted, part.shape, size, name=name, source=replace(part))
    return result
