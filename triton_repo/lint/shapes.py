"""Shapes as Triton compares them.

Source: https://github.com/triton-inference-server/core (ValidateIOShape, ValidateTensorConsistency).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WILDCARD = -1


def agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes can be of one tensor: as long as each other, and equal wherever both are fixed."""
    return len(one) == len(other) and all(a == b or WILDCARD in (a, b) for a, b in zip(one, other, strict=True))


def full(dims: Sequence[int], batching: bool) -> list[int]:
    """The shape with the batch axis that a batching model adds in front."""
    return [WILDCARD, *dims] if batching else list(dims)


def chunks(dims: Sequence[int]) -> list[int]:
    """The element counts between the axes of variable size."""
    counts = [1]
    for dim in dims:
        if dim == WILDCARD:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def reshapes(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether ``dims`` can be reshaped to ``shape``: the same counts between the variable axes."""
    if not shape:
        return WILDCARD not in dims and math.prod(dims) == 1
    return chunks(dims) == chunks(shape)


def text(dims: Sequence[int]) -> str:
    """A shape for a message."""
    return "[" + ", ".join(str(dim) for dim in dims) + "]"
