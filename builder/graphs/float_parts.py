"""Float tensors of a checkpoint in the type that is wanted, looked at as they are written, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from trtforge.drafting.conversion import Part
from trtforge.ground.errors import ForgeError

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
    """A part in a float type, its source's or another, rounded to nearest even; every value of it is a number."""

    name: str = ""
    source: Part | None = None

    def chunks(self) -> Iterator[bytes]:
        """The converted bytes.

        Raises:
            ForgeError: ``TF-GRF-021`` a value that the type cannot hold; ``TF-GRF-022`` one that is no number.
        """
        assert self.source is not None
        have, want = _NUMPY[self.source.dtype], _NUMPY[self.dtype]
        for chunk in self.source.chunks():
            values = np.frombuffer(chunk, dtype=have)
            broken = values.size - int(np.isfinite(values).sum())
            if broken:
                raise ForgeError(
                    "TF-GRF-022",
                    f"{self.name} of the draft has values that are infinite or no numbers",
                    asked=f"speculation.draft, whose {self.name} is read",
                    numbers={"values": broken, "of": values.size, "stored": self.source.dtype},
                    why="One of them spoils every draft behind it, and none would be accepted.",
                    remedies=["a sound checkpoint of the draft", "train it again: its training diverged"],
                )
            with np.errstate(over="ignore"):
                converted = values.astype(want, copy=False)
            if not np.isfinite(converted).all():
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
    """The parts with every float tensor in the recipe's ``dtype``; the bytes of what has that type already stay."""
    wanted, result = STORED[dtype], {}
    for name, part in parts.items():
        if part.dtype not in _NUMPY:
            result[name] = part
        else:
            size = part.nbytes // _NUMPY[part.dtype].itemsize * _NUMPY[wanted].itemsize
            result[name] = Converted(wanted, part.shape, size, name=name, source=replace(part))
    return result
