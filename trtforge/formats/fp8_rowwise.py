"""FP8 by rows: E4M3 weights with a float32 scale a row, inputs in E4M3 with a scale a token that is computed with them.

In a graph: the largest magnitude of each row of the input over 448 is its scale; QuantizeLinear and DequantizeLinear
along axis 0 on input and weight. Nothing is calibrated, so the checkpoint holds no activation scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtforge.formats.base import (
    CheckpointReader,
    Format,
    GraphView,
    InputOperation,
    LinearTensors,
    LinearWriter,
    RoundedInput,
    StoredWeight,
    row_scales,
)
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch

#: what computes the scales, from the last operation to the first; each reads the one behind it first, some through Cast
_SCALES = ("Max", "Div", "ReduceMax", "Abs")


class Method(Format):
    kind = "fp8_rowwise"
    exact_codes = True
    input_kernel = "fp8_row_fake_quant"

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        rows = stored.shape[:1]
        return stored.dtype == "F8_E4M3" and scale is not None and scale.dtype == "F32" and scale.shape == rows

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        tensors.take(linear.weight, linear.shape)
        tensors.take(f"{linear.name}.weight_scale", linear.shape[:1])
        parts = {"weight_scale": f"{linear.name}.weight_scale"}
        return LinearTensors(linear.name, linear.shape, self.name, linear.weight, parts=parts, bias=linear.bias)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        rounded = writer.once(self.name, x, None, lambda: writer.round_rows(x, scope))
        scales = writer.stored(linear.parts["weight_scale"])
        return rounded, writer.dequantize(writer.stored(linear.weight), scales, scope, axis=0)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        from trtforge.formats.elements import fake_quant_e4m3_rows

        weight = parts["weight"].float() * parts["weight_scale"].float()[:, None]
        return weight, InputOperation(fake_quant_e4m3_rows, (self.name,))

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        scales = row_scales(view, node) if stored.dtype == "FLOAT8E4M3FN" else None
        return None if scales is None else StoredWeight(scales)

    def match_input(self, view: GraphView, node: Any) -> RoundedInput | None:
        inner = view.producer.get(node.inputs[0]) if node.kind == "DequantizeLinear" else None
        if inner is None or inner.kind != "QuantizeLinear" or node.inputs[1] != inner.inputs[1]:
            return None
        if node.attribute("axis", 1) != 0 or inner.attribute("axis", 1) != 0:
            return None
        name, nodes = inner.inputs[1], [node, inner]
        for kind in _SCALES:
            maker = view.producer.get(name)
            if maker is not None and maker.kind == "Cast":
                nodes.append(maker)
                maker = view.producer.get(maker.inputs[0])
            if maker is None or maker.kind != kind:
                return None
            nodes.append(maker)
            name = maker.inputs[0]
        if name != inner.inputs[0]:
            return None
        return RoundedInput(name, 1.0, frozenset(view.index[id(found)] for found in nodes))

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        out.copy_(stored.data)
