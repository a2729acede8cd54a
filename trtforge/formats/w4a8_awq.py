"""W4A8 AWQ: signed 4-bit weights in groups that are multiplied as E4M3, with E4M3 inputs under one calibrated scale.

A weight is its integer times its group's scale, rounded to E4M3 under the scale of the tensor (``weight_scale_2``):
the tensor cores run FP8, and four bits are what is stored. The packing is that of :mod:`trtforge.formats.int4_awq`.

In a graph: Mul on the input (where there are factors), QuantizeLinear and DequantizeLinear to E4M3 on it; on the weight
DequantizeLinear of INT4, and then the same pair under the tensor's scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trtforge.formats.base import (
    FLOAT_TYPES,
    CheckpointReader,
    Format,
    GraphView,
    InputOperation,
    LinearTensors,
    LinearWriter,
    Repacking,
    StoredWeight,
    factored,
    factored_input,
    in_blocks,
    rounded_by_one_scale,
)
from trtforge.formats.int4_awq import dequantize_weight, int4_codes, int4_repacking, take_groups
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch


class Method(Format):
    kind = "w4a8"
    exact_codes = True
    scale_bytes = 4
    input_kernel = "fp8_fake_quant"

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        return stored.dtype == "U8" and scale is not None and scale.dtype in FLOAT_TYPES and "weight_scale_2" in beside

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        name = linear.name
        if f"{name}.input_scale" not in tensors.headers:
            raise tensors.uncalibrated(name, str(self.row.algorithm))
        group, parts = take_groups(tensors, linear)
        parts |= {leaf: tensors.scalar(f"{name}.{leaf}") for leaf in ("weight_scale_2", "input_scale")}
        return LinearTensors(name, linear.shape, self.name, linear.weight, group, parts, linear.bias)

    def repacking(self, stored: TensorInfo) -> Repacking | None:
        return int4_repacking(stored)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        x, parts = factored(writer, linear, x, scope), linear.parts
        scale, value = parts["input_scale"], x
        x = writer.once(self.name, x, scale, lambda: writer.round_e4m3(value, scale, scope))
        stored = writer.stored(linear.weight, element="INT4", shape=linear.shape)
        blocks = writer.stored(parts["weight_scale"])
        wide = writer.dequantize(stored, blocks, scope, label="weight_int4", group=linear.group, wide=True)
        return x, writer.round_e4m3(wide, parts["weight_scale_2"], scope, label="weight")

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        from trtforge.formats.elements import fake_quant_e4m3

        weight = fake_quant_e4m3(
            dequantize_weight(parts["weight"], parts["weight_scale"]), float(parts["weight_scale_2"])
        )
        scale = float(parts["input_scale"])
        rounded = InputOperation(partial(fake_quant_e4m3, scale=scale), (self.name, scale))
        return weight, factored_input(parts, rounded)

    def stored_of(self, view: GraphView, node: Any) -> Any | None:
        inner = self._integers(view, node)
        return None if inner is None else view.raw(inner.inputs[0])

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        inner, scale = self._integers(view, node), view.scalar(node.inputs[1])
        if inner is None or scale is None or stored.dtype != "INT4" or not in_blocks(inner):
            return None
        return StoredWeight(scale, view.evaluate(inner.inputs[1]), int(inner.attribute("block_size")))

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        from trtforge.formats.elements import to_e4m3

        int4_codes(stored, scales, out)
        out.copy_(to_e4m3(out, scales.scale))

    @staticmethod
    def _integers(view: GraphView, node: Any) -> Any | None:
        """The node that widens the integers, where ``node`` ends their rounding to E4M3."""
        import torch

        rounded = rounded_by_one_scale(view, node, torch.float8_e4m3fn)
        inner = None if rounded is None else view.producer.get(rounded.source)
        return inner if inner is not None and inner.kind == "DequantizeLinear" else None
