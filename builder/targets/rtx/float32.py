"""The ``native`` graph in float32, in the form that ONNX Runtime runs on a CPU.

RTX engines cannot be run without their GPU. The graph that they are compiled from can: written from the same
checkpoint by the same code, with float32 activations. Three things differ, none in meaning up to float32's rounding:

- NVFP4 weights are de-quantized (ONNX Runtime has no kernel for E2M1);
- ``DynamicBlockQuantize`` comes with its definition in standard operators, as a function of the model;
- scales of block-wise INT4 de-quantization are cast to float32 (there is no kernel for 16-bit ones).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper

from builder import opset
from builder.graphs.build import build_graph
from builder.graphs.info import GRAPH_FILE, GraphInfo
from builder.graphs.model_file import ONNX_OPSET
from builder.targets.parser_rules import element_types, integer_attribute, typed_scales
from trtforge.ground.progress import Progress

#: de-quantized weights beside the graph
WEIGHTS_FILE = "float32.bin"
#: magnitudes of E2M1 by their three bits (OCP Microscaling Formats 1.0, table 5)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def emit_float32(checkpoint: Path, out: Path, *, progress: Progress | None = None) -> GraphInfo:
    """Write the float32 graph of a checkpoint into ``out``, weights beside it; ``out`` becomes large.

    Raises:
        ForgeError: what :func:`builder.graphs.build.build_graph` refuses.
    """
    info = build_graph(checkpoint, out, dtype="float32", kv_cache_format="float32", mode="native", progress=progress)
    path = out / GRAPH_FILE
    model = onnx.load(path, load_external_data=False)
    graph, types = model.graph, element_types(model)
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    nodes: list[NodeProto] = []
    replaced: dict[str, TensorProto] = {}
    unused: set[str] = set()
    with (out / WEIGHTS_FILE).open("wb") as weights:
        for node in graph.node:
            if node.op_type == "DequantizeLinear" and types[node.input[0]] == TensorProto.FLOAT4E2M1:
                stored, scales = initializers[node.input[0]], producers[node.input[1]]
                block = integer_attribute(node, "block_size")
                assert block is not None
                values = dequantize_nvfp4(
                    np.frombuffer(_read(out, stored), np.uint8),
                    np.frombuffer(_read(out, initializers[scales.input[0]]), ml_dtypes.float8_e4m3fn),
                    np.frombuffer(_read(out, initializers[scales.input[1]]), np.float32),
                    shape=(stored.dims[0], stored.dims[1]),
                    block=block,
                )
                replaced[node.output[0]] = _external(node.output[0], values, weights.tell())
                weights.write(values.tobytes())
                unused |= {scales.name, node.name, node.input[0], *scales.input}
            elif node.op_type == "DequantizeLinear" and integer_attribute(node, "block_size"):
                nodes.extend(typed_scales(node, types, producers))
            else:
                nodes.append(node)
    kept = [node for node in nodes if node.name not in unused]
    still = {name for node in kept for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name not in unused or tensor.name in still]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend([*tensors, *replaced.values()])
    if any(node.domain == opset.DOMAIN for node in kept):
        model.functions.append(_dynamic_block_quantize())
    if not replaced:
        (out / WEIGHTS_FILE).unlink()
    path.write_bytes(model.SerializeToString(deterministic=True))
    return info


def dequantize_nvfp4(
    packed: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.generic],
    outer: npt.NDArray[np.float32],
    *,
    shape: tuple[int, int],
    block: int,
) -> npt.NDArray[np.float32]:
    """Weights [N, K] in float32 of E2M1 pairs (even input in the low nibble), E4M3 block scales and one outer scale."""
    rows, columns = shape
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(rows, columns)
    magnitude = _E2M1[nibbles & 0x7]
    signed = np.where(nibbles & 0x8, -magnitude, magnitude)
    factor = scales.astype(np.float32).reshape(rows, columns // block) * np.float32(outer.reshape(()))
    return (signed.reshape(rows, -1, block) * factor[:, :, None]).reshape(shape)


def _read(directory: Path, tensor: TensorProto) -> bytes:
    place = {entry.key: entry.value for entry in tensor.external_data}
    with (directory / place["location"]).open("rb") as file:
        file.seek(int(place["offset"]))
        return file.read(int(place["length"]))


def _external(name: str, values: npt.NDArray[np.float32], offset: int) -> TensorProto:
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=list(values.shape), data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", values.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _dynamic_block_quantize() -> FunctionProto:
    """``DynamicBlockQuantize`` v1 for float32 in standard operators (blocks of 16); see :mod:`builder.opset`.

    E2M1 has steps of 0.5 below 2, of 1 below 4 and of 2 above; ONNX's Round takes ties to the even multiple, which
    is the one with an even mantissa.
    """
    nodes: list[NodeProto] = []

    def constant(name: str, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        tensor = onnx.numpy_helper.from_array(np.asarray(values, dtype=dtype), name)
        nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    zero_e4m3 = helper.make_tensor("zero_e4m3", TensorProto.FLOAT8E4M3FN, [], [0.0])
    nodes.append(helper.make_node("Constant", [], ["zero_e4m3"], value=zero_e4m3))
    one, zero, six = constant("one", 1.0), constant("zero", 0.0), constant("six", 6.0)
    add("Shape", ["x"], "shape")
    blocks = add("Reshape", ["x", constant("flat", [-1, 16], np.int64)], "blocks")
    largest = add("ReduceMax", [add("Abs", [blocks], "sizes"), constant("axis", [1], np.int64)], "largest", keepdims=1)
    wanted = add("Div", [add("Div", [largest, six], "sixth"), "input_scale"], "wanted")
    capped = add("Min", [wanted, constant("e4m3_max", 448.0)], "capped")
    stored = add("QuantizeLinear", [capped, one, "zero_e4m3"], "stored")
    scale = add("Mul", [add("DequantizeLinear", [stored, one], "scale_e4m3"), "input_scale"], "scale")
    safe = add("Where", [add("Equal", [scale, zero], "is_zero"), one, scale], "safe_scale")
    scaled = add("Div", [blocks, safe], "scaled")
    size = add("Min", [add("Abs", [scaled], "scaled_sizes"), six], "size")
    coarse = add("Where", [add("Less", [size, constant("four", 4.0)], "below_4"), one, constant("two", 2.0)], "coarse")
    step = add("Where", [add("Less", [size, "two"], "below_2"), constant("half", 0.5), coarse], "step")
    rounded = add("Mul", [add("Round", [add("Div", [size, step], "steps")], "whole"), step], "rounded")
    signed = add("Mul", [add("Sign", [scaled], "sign"), rounded], "signed")
    add("Reshape", [add("Mul", [signed, safe], "wide"), "shape"], "y")
    return helper.make_function(
        opset.DOMAIN,
        opset.DYNAMIC_BLOCK_QUANTIZE,
        ["x", "input_scale"],
        ["y"],
        nodes,
        [helper.make_opsetid("", ONNX_OPSET)],
        attributes=["block_size"],
    )
