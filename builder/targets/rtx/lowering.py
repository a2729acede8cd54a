"""The ``native`` graph in the form that the parser of TensorRT for RTX takes.

The graph directory keeps the general graph; what is particular to the compiler is done to a copy in memory:

- the cache's length is fixed (the KV-cache layer takes no dynamic one);
- one row of logits a request, as a step of generation wants: B is the only size of what goes in and out beside Q;
- float32 attention may be taken apart: only 16-bit types have a kernel of their own (those that have one keep it);
- activations and scales are written as :mod:`builder.targets.parser_rules` says.

Weights stay external: the parser reads them from the safetensors files of the graph directory.
"""

from __future__ import annotations

import onnx
from onnx import NodeProto, TensorProto, helper

from builder import opset
from builder.targets.parser_rules import (
    PARSER_DOMAIN,
    dynamic_quantize,
    element_types,
    integer_attribute,
    typed_scales,
)

#: the parser's attribute of Attention: primitive operators will do where no fused kernel exists
_DECOMPOSABLE = "TRT_decomposable"


def lower(model: onnx.ModelProto, *, capacity: int) -> onnx.ModelProto:
    """A copy of ``model`` for the parser; ``capacity`` is C, slots of a request's cache."""
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    types = element_types(model)
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "C":
                dim.dim_value = capacity
            elif dim.dim_param == "L":
                dim.dim_param = "B"
    del graph.value_info[:]  # the shapes before the dimensions were fixed
    producers = {output: node for node in graph.node for output in node.output}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.domain == opset.DOMAIN:
            nodes.extend(dynamic_quantize(node, types))
        elif node.op_type == "DequantizeLinear" and integer_attribute(node, "block_size"):
            nodes.extend(typed_scales(node, types, producers))
        else:
            if node.op_type == "Attention" and types[node.input[0]] == TensorProto.FLOAT:
                node.attribute.append(helper.make_attribute(_DECOMPOSABLE, 1))
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {node.domain for node in nodes}
    kept = [item for item in lowered.opset_import if item.domain in used]
    del lowered.opset_import[:]
    lowered.opset_import.extend(kept)
    if PARSER_DOMAIN in used:
        lowered.opset_import.append(helper.make_opsetid(PARSER_DOMAIN, 1))
    return lowered
