"""INT4 AWQ: signed 4-bit weights with a float scale for G columns; the input is multiplied by factors a channel.

ModelOpt stores [N/2, K] bytes: byte (i, k) holds row 2i in its low and row 2i+1 in its high nibble. ONNX stores the
elements of [N, K] in order, two a byte, the even one in the low nibble. Both hold two's complement nibbles, so
repacking moves bits and changes no value.

In a graph: Mul on the input (where there are factors), DequantizeLinear of INT4 on the weight. In TensorRT-LLM's
checkpoint: ``weight`` I8 [N/2, K] as ModelOpt's, ``weights_scaling_factor`` F32 [N, K/G], ``prequant_scaling_factor``
[K] in the model's type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtforge.formats.base import (
    FLOAT_TYPES,
    CheckpointReader,
    Format,
    GraphView,
    InputOperation,
    LinearTensors,
    LinearWriter,
    Part,
    Repacking,
    ShardWriter,
    StoredWeight,
    factored,
    factored_input,
    in_blocks,
    input_factors,
)
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch


def repack_rows(packed_rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """ModelOpt's bytes [R, K] (2R rows of weights) as ONNX's [2R, K/2]."""
    low, high = packed_rows & 0xF, packed_rows >> 4
    rows = np.stack([low, high], axis=1).reshape(-1, packed_rows.shape[1])
    result: npt.NDArray[np.uint8] = rows[:, 0::2] | (rows[:, 1::2] << 4)
    return result


#: what makes ONNX's layout of ModelOpt's
REPACKING = Repacking(
    "onnx-int4",
    "[N, K/2]: even input in the low nibble, two's complement",
    lambda shape: (2 * shape[0], shape[1] // 2),
    repack_rows,
)


class Method(Format):
    kind = "int4"
    scale_bytes = 2
    kernels = ("host_int4",)

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        two_level = "weight_scale_2" in beside or "input_scale" in beside
        return stored.dtype == "U8" and scale is not None and scale.dtype in FLOAT_TYPES and not two_level

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        group, parts = take_groups(tensors, linear)
        return LinearTensors(linear.name, linear.shape, self.name, linear.weight, group, parts, linear.bias)

    def repacking(self, stored: TensorInfo) -> Repacking | None:
        return int4_repacking(stored)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        x = factored(writer, linear, x, scope)
        stored = writer.stored(linear.weight, element="INT4", shape=linear.shape)
        return x, writer.dequantize(stored, writer.stored(linear.parts["weight_scale"]), scope, group=linear.group)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        return dequantize_weight(parts["weight"], parts["weight_scale"]), factored_input(parts, None)

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        if stored.dtype != "INT4" or not in_blocks(node):
            return None
        return StoredWeight(1.0, view.evaluate(node.inputs[1]), int(node.attribute("block_size")))

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        int4_codes(stored, scales, out)

    def shard(
        self, writer: ShardWriter, out: str, parts: Sequence[Part], columns: tuple[int, int] | None
    ) -> Iterator[Any]:
        yield writer.stack(f"{out}.weight", parts, "weight", columns, rows=2, dtype="I8")
        group = writer.group or 128
        blocks = None if columns is None else (columns[0] // group, columns[1] // group)
        yield writer.widened(writer.stack(f"{out}.weights_scaling_factor", parts, "weight_scale", blocks))
        yield writer.input_factors(f"{out}.prequant_scaling_factor", parts, columns)


def int4_repacking(stored: TensorInfo) -> Repacking | None:
    """How ModelOpt's bytes are laid out anew; None: their columns do not go into whole bytes."""
    return REPACKING if len(stored.shape) == 2 and stored.shape[1] % 2 == 0 else None


def take_groups(tensors: CheckpointReader, linear: LinearTensors) -> tuple[int, dict[str, str]]:
    """The group length of a linear's integers, and the parts ``weight_scale`` and (where it has them) factors."""
    name, (rows, columns) = linear.name, linear.shape
    for size in linear.shape:
        if size % 2:
            tensors.divides(name, size, 2)
    tensors.take(linear.weight, (rows // 2, columns))
    scale = tensors.take(f"{name}.weight_scale")
    groups = scale.shape[-1] if len(scale.shape) == 2 else 0
    tensors.divides(name, columns, columns // groups if groups and columns % groups == 0 else 0)
    tensors.take(f"{name}.weight_scale", (rows, groups))
    return columns // groups, {"weight_scale": f"{name}.weight_scale", **input_factors(tensors, linear)}


def int4_codes(stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
    """Fill float32 [N, K] with the integers of ONNX's INT4 times their groups' scales."""
    from trtforge.formats.elements import signed_nibbles, unpack_nibbles

    assert scales.block_scales is not None
    blocks = out.view(out.shape[0], -1, scales.group)
    blocks.copy_(signed_nibbles(unpack_nibbles(stored.data)).view(blocks.shape))
    blocks.mul_(scales.block_scales.float()[..., None])


def unpack_rows(packed: torch.Tensor) -> torch.Tensor:
    """ModelOpt's packing, uint8 [N/2, K] → int8 [N, K]: row 2r is the low nibble of packed row r."""
    import torch

    from trtforge.formats.elements import signed_nibbles

    return signed_nibbles(torch.stack((packed & 0xF, packed >> 4), dim=1).flatten(0, 1))


def pack_rows(values_NK: torch.Tensor) -> torch.Tensor:
    """int8 [N, K] in -8..7 → uint8 [N/2, K]; the inverse of :func:`unpack_rows`."""
    import torch

    codes = values_NK.to(torch.uint8) & 0xF
    return codes[0::2] | (codes[1::2] << 4)


def dequantize_weight(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """uint8 [N/2, K] and float scales [N, K/G] → float32 [N, K]; G follows from the shapes."""
    values = unpack_rows(packed).float()
    return (values.unflatten(-1, (scales.shape[-1], -1)) * scales.float().unsqueeze(-1)).flatten(-2)
