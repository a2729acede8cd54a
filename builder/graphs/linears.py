"""Linear layers: explicit Q/DQ in front of a plain MatMul, as each format says.

Policy: what the checkpoint stores is what the graph states. Weights stay [N, K] as in the file, are
de-quantized by DequantizeLinear where they are quantized, and transposed for MatMul; activations are
quantized where the format says so. An executor or a compiler recognizes these patterns and picks a
kernel; run as written they compute the format's meaning. Which nodes a format has is in its module
(:meth:`trtforge.formats.base.Format.emit`), in terms of what :class:`LinearWriter` writes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from builder import opset
from builder.graphs.emitter import Emitter, scope_of
from builder.graphs.tensors import CheckpointTensors
from trtforge.formats import format_named
from trtforge.formats.base import INPUT_FACTORS, LEAST_SCALE, LinearTensors
from trtforge.ground.safetensors_header import TensorInfo


class LinearWriter:
    """Writes linears into a graph; remembers quantized activations so that equal scales share their nodes."""

    def __init__(
        self, emitter: Emitter, tensors: CheckpointTensors, model_type: int, packed: dict[str, TensorInfo]
    ) -> None:
        self.emitter = emitter
        self.tensors = tensors
        self.model_type = model_type
        #: where weights that are laid out anew will lie, by the weight's name
        self.packed = packed
        self.written: list[LinearTensors] = []
        self._shared: dict[tuple[str, str, bytes], str] = {}

    def write(self, linear: LinearTensors, x: str, *, output: str | None = None) -> str:
        """y = x Wᵀ (+ bias) in the model's type; returns y's name."""
        scope = scope_of(linear.name)
        x, weight = format_named(linear.format).emit(self, linear, x, scope)
        self.written.append(linear)
        transposed = self.emitter.node("Transpose", [weight], scope, perm=[1, 0])
        last = output if linear.bias is None else None
        y = self.emitter.node("MatMul", [x, transposed], scope, output=last)
        if linear.bias is not None:
            bias = self.in_model_type(linear.bias, scope, label="Cast_bias")
            y = self.emitter.node("Add", [y, bias], scope, output=output)
        return y

    def in_model_type(self, name: str, scope: str, *, label: str = "Cast_weight") -> str:
        """A float tensor of the checkpoint as an initializer, cast when the model runs in another type."""
        initializer = self.emitter.external(name, self.tensors.headers[name])
        return self.emitter.cast(initializer, self.emitter.types[initializer], self.model_type, scope, label)

    def scalar(self, name: str) -> str:
        """A one-element tensor of the checkpoint as a scalar initializer."""
        return self.emitter.external(name, self.tensors.headers[name], shape=())

    def stored(self, name: str, *, element: str | None = None, shape: tuple[int, int] | None = None) -> str:
        """A tensor of the checkpoint (or of what was laid out anew) as an initializer of ONNX type ``element``."""
        info = self.packed.get(name) or self.tensors.headers[name]
        onnx_type = None if element is None else TensorProto.DataType.Value(element)
        return self.emitter.external(name, info, onnx_type=onnx_type, shape=shape)

    def once(self, kind: str, x: str, scale: str | None, write: Callable[[], str]) -> str:
        """What ``write`` makes of ``x`` under the tensor ``scale``; linears with an equal one (or with none, where
        scales are computed with the values) share the nodes."""
        key = (kind, x, b"" if scale is None else self.tensors.read(scale))
        if key not in self._shared:
            self._shared[key] = write()
        elif scale is not None:
            self.tensors.account(scale, "equal to the scale of a linear with the same input, whose nodes it shares")
        return self._shared[key]

    def scaled(self, x: str, factors: str, scope: str) -> str:
        """``x`` times the checkpoint's factors [K]; linears with equal ones share the node."""

        def write() -> str:
            factor = self.in_model_type(factors, scope, label="Cast_pre_quant_scale")
            return self.emitter.node("Mul", [x, factor], scope, label="Mul_pre_quant_scale")

        return self.once(INPUT_FACTORS, x, factors, write)

    def round_e4m3(self, x: str, scale: str, scope: str, *, label: str = "input") -> str:
        """``x`` rounded to E4M3 under one scale: QuantizeLinear, DequantizeLinear."""
        emitter = self.emitter
        zero = emitter.constant("fp8_zero", np.zeros((), dtype=np.uint8), onnx_type=TensorProto.FLOAT8E4M3FN)
        stored = self.scalar(scale)
        quantized = emitter.node(
            "QuantizeLinear", [x, stored, zero], scope, label=f"QuantizeLinear_{label}", saturate=1
        )
        return self.dequantize(quantized, stored, scope, label=label)

    def round_int8(self, x: str, scale: str, scope: str) -> str:
        """``x`` rounded to INT8 under one scale: QuantizeLinear, DequantizeLinear."""
        zero, stored = self.emitter.constant("int8_zero", np.zeros((), dtype=np.int8)), self.scalar(scale)
        quantized = self.emitter.node("QuantizeLinear", [x, stored, zero], scope, label="QuantizeLinear_input")
        return self.dequantize(quantized, stored, scope, label="input")

    def round_rows(self, x: str, scope: str) -> str:
        """Each row of ``x`` [T, K] rounded to E4M3 under a scale of its own, float32 [T]: max |x| / 448."""
        emitter = self.emitter
        largest = emitter.node("ReduceMax", [emitter.node("Abs", [x], scope), emitter.axes(-1)], scope, keepdims=0)
        wide = emitter.node("Cast", [largest], scope, label="Cast_largest", to=TensorProto.FLOAT)
        bound = emitter.constant("e4m3_max", np.array(448, dtype=np.float32))
        # a row of zeros keeps a scale that can be divided by
        least = emitter.constant("least_scale", np.array(LEAST_SCALE, dtype=np.float32))
        scales = emitter.node("Max", [emitter.node("Div", [wide, bound], scope), least], scope, label="Max_scale")
        quantized = emitter.node(
            "QuantizeLinear",
            [x, scales],
            scope,
            label="QuantizeLinear_input",
            axis=0,
            saturate=1,
            output_dtype=TensorProto.FLOAT8E4M3FN,
        )
        return self.dequantize(quantized, scales, scope, label="input", axis=0)

    def round_blocks(self, x: str, scale: str, scope: str, *, group: int) -> str:
        """``x`` rounded to E2M1 in blocks with E4M3 scales of their own under one scale."""
        inputs = [x, self.scalar(scale)]
        return self.emitter.node(opset.DYNAMIC_BLOCK_QUANTIZE, inputs, scope, domain=opset.DOMAIN, block_size=group)

    def dequantize(
        self,
        values: str,
        scales: str,
        scope: str,
        *,
        label: str = "weight",
        group: int | None = None,
        wide: bool = False,
        axis: int | None = None,
    ) -> str:
        """De-quantized values: one scale, one for each index of ``axis``, or one for ``group`` columns; ``wide``: in
        float32, not the model's type."""
        blocks: dict[str, Any] = {} if group is None else {"axis": 1, "block_size": group}
        if axis is not None:
            blocks["axis"] = axis
        return self.emitter.node(
            "DequantizeLinear",
            [values, scales],
            scope,
            label=f"DequantizeLinear_{label}",
            **blocks,
            output_dtype=TensorProto.FLOAT if wide else self.model_type,
        )
