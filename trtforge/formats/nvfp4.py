"""NVFP4: E2M1 weights and activations in blocks of 16 along K, an E4M3 scale a block, a float32 scale a tensor.

In a graph: DynamicBlockQuantize on the input (where it is calibrated), DequantizeLinear of E2M1 on the weight with
scales that are de-quantized from E4M3 themselves. In TensorRT-LLM's checkpoint: ``weight`` U8 [N, K/2],
``weights_scaling_factor`` E4M3 [N, K/16], ``weights_scaling_factor_2`` and ``activation_scaling_factor`` F32 [1].

The two levels of scales are as TensorRT (DynamicQuantize) and ModelOpt define them.
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
    factored,
    factored_input,
    in_blocks,
    input_factors,
)
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch

BLOCK = 16


class Method(Format):
    kind = "nvfp4"
    exact_codes = True
    scale_bytes = 1
    input_kernel = "nvfp4_fake_quant"

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        scale = beside.get("weight_scale")
        return stored.dtype in ("U8", "F4") and scale is not None and scale.dtype == "F8_E4M3"

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        name, (rows, columns) = linear.name, linear.shape
        tensors.divides(name, columns, BLOCK)
        packed = (rows, columns // 2) if tensors.headers[linear.weight].dtype == "U8" else linear.shape
        tensors.take(linear.weight, packed)
        tensors.take(f"{name}.weight_scale", (rows, columns // BLOCK))
        dynamic = f"{name}.input_scale" in tensors.headers
        if not dynamic and not tensors.weight_only:
            raise tensors.uncalibrated(name, str(self.row.algorithm))
        leaves = ("weight_scale_2", "input_scale") if dynamic else ("weight_scale_2",)
        parts = {"weight_scale": f"{name}.weight_scale"}
        parts |= {leaf: tensors.scalar(f"{name}.{leaf}") for leaf in leaves} | input_factors(tensors, linear)
        return LinearTensors(name, linear.shape, self.name, linear.weight, BLOCK, parts, linear.bias)

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        x, parts = factored(writer, linear, x, scope), linear.parts
        if "input_scale" in parts:
            scale, value = parts["input_scale"], x
            x = writer.once(self.name, x, scale, lambda: writer.round_blocks(value, scale, scope, group=BLOCK))
        blocks = writer.stored(parts["weight_scale"])
        tensor = writer.scalar(parts["weight_scale_2"])
        scales = writer.dequantize(blocks, tensor, scope, label="weight_scale", wide=True)
        stored = writer.stored(linear.weight, element="FLOAT4E2M1", shape=linear.shape)
        return x, writer.dequantize(stored, scales, scope, group=BLOCK)

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        from trtforge.formats.elements import dequantize_two_level, fake_quant_two_level

        block = parts["weight"].shape[-1] * 2 // parts["weight_scale"].shape[-1]
        weight = dequantize_two_level(parts["weight"], parts["weight_scale"], parts["weight_scale_2"], block=block)
        rounded = None
        if "input_scale" in parts:
            scale = float(parts["input_scale"])
            apply = partial(fake_quant_two_level, global_scale=scale, block=block)
            rounded = InputOperation(apply, (self.name, scale, block))
        return weight, factored_input(parts, rounded)

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        maker = view.producer.get(node.inputs[1])
        if stored.dtype != "FLOAT4E2M1" or maker is None or maker.kind != "DequantizeLinear":
            return None
        blocks, scale = view.raw(maker.inputs[0]), view.scalar(maker.inputs[1])
        if blocks is None or blocks.dtype != "FLOAT8E4M3FN" or scale is None or not in_blocks(node):
            return None
        return StoredWeight(scale, blocks.data.float(), int(node.attribute("block_size")))

    def match_input(self, view: GraphView, node: Any) -> RoundedInput | None:
        if node.kind != "trtforge::DynamicBlockQuantize" or int(node.attribute("block_size", BLOCK)) != BLOCK:
            return None
        scale = view.scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else 1.0
        return None if scale is None else RoundedInput(node.inputs[0], scale, frozenset({view.index[id(node)]}))

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        from trtforge.formats.elements import e2m1_decode, unpack_nibbles

        assert scales.block_scales is not None
        blocks = out.view(out.shape[0], -1, scales.group)
        blocks.copy_(e2m1_decode(unpack_nibbles(stored.data)).view(blocks.shape))
        blocks.mul_(scales.block_scales.float()[..., None])

    def shard(
        self, writer: ShardWriter, out: str, parts: Sequence[Part], columns: tuple[int, int] | None
    ) -> Iterator[Any]:
        scales = writer.scalars(parts, "weight_scale_2")
        if len(set(scales.values())) > 1:
            raise writer.unlike(out, parts, "their weights have different global scales (weight_scale_2)", scales)
        block = writer.group or BLOCK
        halves = None if columns is None else (columns[0] // 2, columns[1] // 2)
        blocks = None if columns is None else (columns[0] // block, columns[1] // block)
        yield writer.stack(f"{out}.weight", parts, "weight", halves)
        yield writer.stack(f"{out}.weights_scaling_factor", parts, "weight_scale", blocks)
        yield writer.numbers(f"{out}.weights_scaling_factor_2", [next(iter(scales.values()))])
        inputs = writer.scalars(parts, "input_scale")
        yield writer.numbers(f"{out}.activation_scaling_factor", [max(inputs.values())])
