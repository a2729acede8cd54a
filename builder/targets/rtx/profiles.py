"""Optimization profiles of an RTX engine: which shapes it is compiled for.

Requests are rows of a padded batch. ``decode`` takes one token of every request; ``prefill`` takes long rows of as
many requests as ``max_num_tokens`` allows at the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtforge.recipe.schema import Limits

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """Smallest, usual and largest batch B and row length Q; ``shapes`` of each input come from them."""

    name: str
    batch: tuple[int, int, int]
    row: tuple[int, int, int]

    def shapes(self, inputs: dict[str, tuple[int | str, ...]]) -> dict[str, tuple[Shape, Shape, Shape]]:
        """Smallest, usual and largest shape of every input, whose dimensions are numbers, ``B`` or ``Q``."""
        found = {}
        for name, dims in inputs.items():
            low, usual, high = (
                tuple(d if isinstance(d, int) else {"B": self.batch, "Q": self.row}[d][i] for d in dims)
                for i in range(3)
            )
            found[name] = (low, usual, high)
        return found

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "batch": list(self.batch), "row": list(self.row)}


def make_profiles(limits: Limits) -> tuple[Profile, ...]:
    """Decode first: a runtime selects profile 0 unless told otherwise. ``max_input_len`` must be filled in."""
    assert limits.max_input_len is not None
    largest = limits.max_batch_size
    row = min(limits.max_input_len, limits.max_num_tokens)
    batch = max(1, min(largest, limits.max_num_tokens // row))
    return (
        Profile("decode", (1, largest, largest), (1, 1, 1)),
        Profile("prefill", (1, batch, batch), (1, row, row)),
    )


def input_dims(model: Any) -> dict[str, tuple[int | str, ...]]:
    """Name and dimensions of the inputs of a lowered ONNX model."""
    return {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }
