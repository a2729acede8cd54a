"""A row of a table of tensors; the layouts' tables are made of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorRow:
    """One tensor: Triton data type without the ``TYPE_`` prefix, dims without the batch axis.

    ``scalar``: the model sees one value a request (``reshape { shape: [] }``). ``ragged``: requests of different
    lengths may be batched without padding.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool
    meaning: str
    scalar: bool = False
    ragged: bool = False
