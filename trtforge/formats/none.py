"""Unquantized linears: W [N, K] in one of the float types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtforge.formats.base import (
    FLOAT_TYPES,
    CheckpointReader,
    Format,
    InputOperation,
    LinearTensors,
    LinearWriter,
    Part,
    ShardWriter,
)
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch


class Method(Format):
    """The executor takes such weights as they are: its dense kernels are nobody's own."""

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        return stored.dtype in FLOAT_TYPES

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        tensors.take(linear.weight, linear.shape)
        return linear

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        return x, writer.in_model_type(linear.weight, scope)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        return parts["weight"], None

    def shard(
        self, writer: ShardWriter, out: str, parts: Sequence[Part], columns: tuple[int, int] | None
    ) -> Iterator[Any]:
        yield writer.stack(f"{out}.weight", parts, "weight", columns)
