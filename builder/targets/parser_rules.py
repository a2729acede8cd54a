"""What NVIDIA's ONNX parsers (TensorRT, TensorRT for RTX) want of quantized graphs, whichever target asks.

- Activations quantized by their own data are the parser's operator ``TRT_FP4DynamicQuantize`` and two
  DequantizeLinear; ModelOpt exports the same nodes.
- A block-wise DequantizeLinear takes scales of its output's type; our graphs keep float32 scales.
"""

from __future__ import annotations

import onnx
from onnx import NodeProto, TensorProto, helper

#: domain of the operators that only NVIDIA's parsers know
PARSER_DOMAIN = "trt"
FP4_DYNAMIC_QUANTIZE = "TRT_FP4DynamicQuantize"


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """ONNX element type of every value of a graph whose types were inferred."""
    graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {
        value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)
    }
    return types


def integer_attribute(node: NodeProto, name: str) -> int | None:
    found = [item.i for item in node.attribute if item.name == name]
    return int(found[0]) if found else None


def dynamic_quantize(node: NodeProto, types: dict[str, int]) -> list[NodeProto]:
    """``trtforge::DynamicBlockQuantize`` as the parser's nodes: E2M1 values under E4M3 block scales, and back."""
    x, scale = node.input
    y, block = node.output[0], integer_attribute(node, "block_size") or 16
    stored, scales, wide = f"{y}_fp4", f"{y}_scales", f"{y}_scales_wide"
    return [
        helper.make_node(
            FP4_DYNAMIC_QUANTIZE,
            [x, scale],
            [stored, scales],
            name=node.name,
            domain=PARSER_DOMAIN,
            axis=-1,
            block_size=block,
            scale_type=TensorProto.FLOAT8E4M3FN,
        ),
        helper.make_node(
            "DequantizeLinear", [scales, scale], [wide], name=f"{node.name}_scales", output_dtype=types[x]
        ),
        helper.make_node(
            "DequantizeLinear",
            [stored, wide],
            [y],
            name=f"{node.name}_values",
            axis=-1,
            block_size=block,
            output_dtype=types[x],
        ),
    ]


def typed_scales(node: NodeProto, types: dict[str, int], producers: dict[str, NodeProto]) -> list[NodeProto]:
    """A block-wise DequantizeLinear with scales of its output's type.

    ``producers`` maps a value to its node; the one that makes the scales is changed where it stands when it is a
    DequantizeLinear itself (NVFP4), else a Cast goes in between (INT4).
    """
    target, scales = types[node.output[0]], node.input[1]
    if types[scales] == target:
        return [node]
    producer = producers.get(scales)
    if producer is not None and producer.op_type == "DequantizeLinear":
        for item in producer.attribute:
            if item.name == "output_dtype":
                item.i = target
        return [node]
    cast = f"{node.output[0]}_scales"
    node.input[1] = cast
    return [helper.make_node("Cast", [scales], [cast], name=f"{node.name}_scales", to=target), node]
