"""INT8: signed 8-bit weights with a float32 scale a row; inputs under one calibrated scale, or as they are.

SmoothQuant multiplies the input by factors a channel, which the weights were divided by. ModelOpt keeps the factors
beside the linear (``pre_quant_scale``), each linear its own. Weight-only INT8 has neither factors nor a scale for
inputs.

In a graph: Mul on the input (where there are factors), QuantizeLinear and DequantizeLinear of INT8 on it (where it has
a scale), DequantizeLinear along axis 0 on the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
    factored,
    factored_input,
    input_factors,
    rounded_by_one_scale,
    row_scales,
)
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch


class Method(Format):
    kind = "int8"
    exact_codes = True
    input_kernel = "int8_fake_quant"

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        return stored.dtype == "I8" and scale is not None and scale.shape == stored.shape[:1]

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        name = linear.name
        tensors.take(linear.weight, linear.shape)
        tensors.take(f"{name}.weight_scale", linear.shape[:1])
        parts = {"weight_scale": f"{name}.weight_scale"} | input_factors(tensors, linear)
        if f"{name}.input_scale" in tensors.headers:
            parts["input_scale"] = tensors.scalar(f"{name}.input_scale")
        elif not tensors.weight_only:
            raise tensors.uncalibrated(name, str(self.row.algorithm))
        return LinearTensors(name, linear.shape, self.name, linear.weight, parts=parts, bias=linear.bias)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        x = factored(writer, linear, x, scope)
        if "input_scale" in linear.parts:
            scale, value = linear.parts["input_scale"], x
            x = writer.once(self.name, x, scale, lambda: writer.round_int8(value, scale, scope))
        scales = writer.stored(linear.parts["weight_scale"])
        return x, writer.dequantize(writer.stored(linear.weight), scales, scope, axis=0)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        from trtforge.formats.elements import fake_quant_int8

        weight = parts["weight"].float() * parts["weight_scale"].float()[:, None]
        rounded = None
        if "input_scale" in parts:
            scale = float(parts["input_scale"])
            rounded = InputOperation(partial(fake_quant_int8, scale=scale), (self.name, scale))
        return weight, factored_input(parts, rounded)

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        scales = row_scales(view, node) if stored.dtype == "INT8" else None
        return None if scales is None else StoredWeight(scales)

    def match_input(self, view: GraphView, node: Any) -> RoundedInput | None:
        import torch

        return rounded_by_one_scale(view, node, torch.int8)

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        out.copy_(stored.data)

    def kept_scale(self, scale: float) -> float:
        return scale  # the rounded input is codes
