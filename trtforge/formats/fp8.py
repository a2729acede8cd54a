"""FP8 per tensor: E4M3 weights and activations, one calibrated float32 scale each.

In a graph: QuantizeLinear and DequantizeLinear on the input, DequantizeLinear on the weight. In TensorRT-LLM's
checkpoint: ``weight`` E4M3 [N, K], ``weights_scaling_factor`` and ``activation_scaling_factor`` F32 [1]. Linears that
it fuses have one scale, the largest of theirs: the others' weights are rounded again under it
(``quantize.one_scale`` does so before the checkpoint is evaluated, and leaves nothing to round here).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trtforge.formats.base import (
    CheckpointReader,
    Format,
    GraphView,
    InputOperation,
    LinearTensors,
    LinearWriter,
    Part,
    RoundedInput,
    ShardWriter,
    StoredWeight,
    rounded_by_one_scale,
)
from trtforge.ground.e4m3 import rescale_table
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch


class Method(Format):
    kind = "fp8"
    exact_codes = True
    kernels = ("scaled_mm",)
    input_kernel = "fp8_fake_quant"

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        rows = stored.shape[:1]
        return stored.dtype == "F8_E4M3" and scale is not None and scale.dtype == "F32" and scale.shape != rows

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        tensors.take(linear.weight, linear.shape)
        if f"{linear.name}.input_scale" not in tensors.headers:
            raise tensors.uncalibrated(linear.name, str(self.row.algorithm))
        parts = {leaf: tensors.scalar(f"{linear.name}.{leaf}") for leaf in ("weight_scale", "input_scale")}
        return LinearTensors(linear.name, linear.shape, self.name, linear.weight, parts=parts, bias=linear.bias)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        scale = linear.parts["input_scale"]
        x = writer.once(self.name, x, scale, lambda: writer.round_e4m3(x, scale, scope))
        stored = writer.stored(linear.weight)
        return x, writer.dequantize(stored, writer.scalar(linear.parts["weight_scale"]), scope)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        from trtforge.formats.elements import fake_quant_e4m3

        scale = float(parts["input_scale"])
        weight = parts["weight"].float() * parts["weight_scale"].float()
        return weight, InputOperation(partial(fake_quant_e4m3, scale=scale), (self.name, scale))

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        if stored.dtype != "FLOAT8E4M3FN":
            return None
        scale = view.scalar(node.inputs[1])
        return None if scale is None else StoredWeight(scale)

    def match_input(self, view: GraphView, node: Any) -> RoundedInput | None:
        import torch

        return rounded_by_one_scale(view, node, torch.float8_e4m3fn)

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        out.copy_(stored.data)

    def kept_scale(self, scale: float) -> float:
        return scale  # the rounded input is codes

    def shard(
        self, writer: ShardWriter, out: str, parts: Sequence[Part], columns: tuple[int, int] | None
    ) -> Iterator[Any]:
        scales = writer.scalars(parts, "weight_scale")
        scale = max(scales.values())
        tables = {
            module: rescale_table(own / scale) for module, own in scales.items() if own != scale and own > 0 and scale
        }
        for part in parts:
            if part.module in tables:
                writer.rounded_again(part, scales[part.module] / scale)
        yield writer.stack(f"{out}.weight", parts, "weight", columns, tables=tables)
        yield writer.numbers(f"{out}.weights_scaling_factor", [scale])
        inputs = writer.scalars(parts, "input_scale")
        yield writer.numbers(f"{out}.activation_scaling_factor", [max(inputs.values())])
