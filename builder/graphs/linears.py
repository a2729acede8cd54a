"""Linear layers, one function a stored format: explicit Q/DQ in front of a plain MatMul.

Policy: what the checkpoint stores is what the graph states. Weights stay [N, K] as in the file, are
de-quantized by DequantizeLinear where they are quantized, and transposed for MatMul; activations are
quantized where the format says so. An executor or a compiler recognizes these patterns and picks a
kernel; run as written they compute the format's meaning.

Formats and their nodes (x [T, K], W [N, K]):

========  ==========================================  =======================================
format    activations                                 weight
========  ==========================================  =======================================
none      –                                           W
fp8       QuantizeLinear, DequantizeLinear            DequantizeLinear (one scale)
nvfp4     DynamicBlockQuantize (when calibrated)      DequantizeLinear (block 16) of E2M1, its
                                                      scales de-quantized from E4M3 themselves
int4_awq  Mul by pre_quant_scale (when there is one)  DequantizeLinear (block = group) of INT4
========  ==========================================  =======================================
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from builder import opset
from builder.graphs.emitter import Emitter, scope_of
from builder.graphs.tensors import CheckpointTensors, LinearTensors
from trtforge.ground.safetensors_header import TensorInfo


class LinearWriter:
    """Writes linears into a graph; remembers quantized activations so that equal scales share their nodes."""

    def __init__(
        self, emitter: Emitter, tensors: CheckpointTensors, model_type: int, packed: dict[str, TensorInfo]
    ) -> None:
        self.emitter = emitter
        self.tensors = tensors
        self.model_type = model_type
        #: where repacked INT4 weights will lie, by the weight's name
        self.packed = packed
        self.written: list[LinearTensors] = []
        self._shared: dict[tuple[str, str, bytes], str] = {}

    def write(self, linear: LinearTensors, x: str, *, output: str | None = None) -> str:
        """y = x Wᵀ (+ bias) in the model's type; returns y's name."""
        scope = scope_of(linear.name)
        if linear.pre_quant_scale is not None:
            x = self._pre_scaled(linear.pre_quant_scale, x, scope)
        if linear.format == "fp8":
            x, weight = self._fp8(linear, x, scope)
        elif linear.format == "nvfp4":
            x, weight = self._nvfp4(linear, x, scope)
        elif linear.format == "int4_awq":
            weight = self._int4(linear, scope)
        else:
            weight = self.in_model_type(linear.weight, scope)
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

    def _once(self, kind: str, x: str, scale: str) -> tuple[tuple[str, str, bytes], str | None]:
        key = (kind, x, self.tensors.read(scale))
        found = self._shared.get(key)
        if found is not None:
            self.tensors.account(scale, "equal to the scale of a linear with the same input, whose nodes it shares")
        return key, found

    def _pre_scaled(self, scale: str, x: str, scope: str) -> str:
        key, found = self._once("pre_quant_scale", x, scale)
        if found is None:
            factor = self.in_model_type(scale, scope, label="Cast_pre_quant_scale")
            found = self._shared[key] = self.emitter.node("Mul", [x, factor], scope, label="Mul_pre_quant_scale")
        return found

    def _fp8(self, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        assert linear.input_scale is not None and linear.weight_scale is not None
        emitter = self.emitter
        key, found = self._once("fp8", x, linear.input_scale)
        if found is None:
            zero = emitter.constant("fp8_zero", np.zeros((), dtype=np.uint8), onnx_type=TensorProto.FLOAT8E4M3FN)
            scale = self.scalar(linear.input_scale)
            quantized = emitter.node(
                "QuantizeLinear", [x, scale, zero], scope, label="QuantizeLinear_input", saturate=1
            )
            found = emitter.node(
                "DequantizeLinear",
                [quantized, scale],
                scope,
                label="DequantizeLinear_input",
                output_dtype=self.model_type,
            )
            self._shared[key] = found
        weight = emitter.node(
            "DequantizeLinear",
            [
                emitter.external(linear.weight, self.tensors.headers[linear.weight]),
                self.scalar(linear.weight_scale),
            ],
            scope,
            label="DequantizeLinear_weight",
            output_dtype=self.model_type,
        )
        return found, weight

    def _nvfp4(self, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        assert linear.weight_scale is not None and linear.weight_scale_2 is not None
        emitter = self.emitter
        if linear.input_scale is not None:
            key, found = self._once("nvfp4", x, linear.input_scale)
            if found is None:
                found = self._shared[key] = emitter.node(
                    opset.DYNAMIC_BLOCK_QUANTIZE,
                    [x, self.scalar(linear.input_scale)],
                    scope,
                    domain=opset.DOMAIN,
                    block_size=linear.group,
                )
            x = found
        scales = emitter.node(
            "DequantizeLinear",
            [
                emitter.external(linear.weight_scale, self.tensors.headers[linear.weight_scale]),
                self.scalar(linear.weight_scale_2),
            ],
            scope,
            label="DequantizeLinear_weight_scale",
            output_dtype=TensorProto.FLOAT,
        )
        stored = emitter.external(
            linear.weight, self.tensors.headers[linear.weight], onnx_type=TensorProto.FLOAT4E2M1, shape=linear.shape
        )
        return x, self._block_dequantize(linear, stored, scales, scope)

    def _int4(self, linear: LinearTensors, scope: str) -> str:
        assert linear.weight_scale is not None
        stored = self.emitter.external(
            linear.weight, self.packed[linear.weight], onnx_type=TensorProto.INT4, shape=linear.shape
        )
        scales = self.emitter.external(linear.weight_scale, self.tensors.headers[linear.weight_scale])
        return self._block_dequantize(linear, stored, scales, scope)

    def _block_dequantize(self, linear: LinearTensors, stored: str, scales: str, scope: str) -> str:
        return self.emitter.node(
            "DequantizeLinear",
            [stored, scales],
            scope,
            label="DequantizeLinear_weight",
            axis=1,
            block_size=linear.group,
            output_dtype=self.model_type,
        )
