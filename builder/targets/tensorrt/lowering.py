"""The plugin graph as TensorRT's ONNX parser takes it.

Policy: the meaning stays; only the spelling changes, and only where the parser needs it:

- ``PagedAttention`` gets ``plugin_version`` and ``plugin_namespace``, its optional inputs lose their gaps and are
  named by the flags ``has_scales``, ``has_tree_mask``;
- it also gets ``longest_query`` [Q], an input whose length is the most new tokens of a request: what the plugin knows
  of a step when it launches kernels is its shapes alone, and without this one it would have to expect a long query in
  every step;
- the tree mask is BOOL (TensorRT takes UINT8 as a network input only to cast it to floats);
- ``DynamicBlockQuantize`` and block scales are written as :mod:`builder.targets.parser_rules` says;
- operators that the parser of that version lacks are spelled out with constant axes.

Weights stay in the files that the graph points at; the result is the bytes of a model whose external data are
relative to the graph's folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from builder import opset
from builder.graphs.info import GRAPH_FILE, GraphInfo
from builder.targets.parser_rules import (
    PARSER_DOMAIN,
    dynamic_quantize,
    element_types,
    integer_attribute,
    typed_scales,
)
from builder.targets.tensorrt.plugin_fields import BLOCK_SIZES, NAMESPACE, check_fields
from trtforge.ground.errors import ForgeError

#: optional inputs of PagedAttention: position in the ONNX operator -> the flag that says it is there
_OPTIONAL = ((7, "has_scales"), (8, "has_scales"), (9, "has_tree_mask"))
_REQUIRED = 7
#: the input of the network, and of every plugin node, whose shape alone is read
LONGEST_QUERY = "longest_query"


@dataclass(frozen=True)
class Network:
    """What the builder parses, and what it must find.

    Attributes:
        model: bytes of the ONNX model; its external data are relative to the graph's folder.
        inputs: ``{"name", "type", "shape"}`` of every input, in order; types by ONNX's names.
        outputs: names of the outputs, in order.
        plugins: per plugin node its op and field values.
        spelled_out: operators that were replaced, with their numbers.
    """

    model: bytes
    inputs: list[dict[str, Any]]
    outputs: list[str]
    plugins: list[dict[str, Any]]
    spelled_out: dict[str, int]


def lower(graph_dir: Path, missing: frozenset[str], *, aliased: bool = False) -> Network:
    """The network of a graph directory for a parser that lacks the operators ``missing``.

    Args:
        aliased: the plugins declare to TensorRT that they update their pools in place (see ``target``).

    Raises:
        ForgeError: ``TF-BLD-104`` the graph is not paged; ``TF-BLD-105`` a plugin without kernels;
            ``TF-GRF-015`` no graph directory.
    """
    info = GraphInfo.read(graph_dir)
    if info.mode != "paged" or info.kv_cache["block_size"] not in BLOCK_SIZES:
        raise ForgeError(
            "TF-BLD-104",
            f"The tensorrt target compiles paged graphs with blocks of {', '.join(map(str, BLOCK_SIZES))} slots",
            asked=str(graph_dir),
            numbers={"mode": info.mode, "block_size": info.kv_cache["block_size"]},
            why="Its plugins keep the KV cache in pools of such blocks.",
            remedies=["Build the graph with mode paged", "build.kv_cache.block_size: 32"],
        )
    opset.register()
    model = onnx.load(str(Path(graph_dir) / GRAPH_FILE), load_external_data=False)
    return Lowering(model, missing, aliased=aliased).run()


#: the end of a Slice that goes to the end
_TO_THE_END = 2**63 - 1


class Lowering:
    """Rewrites one model; see the module's policy."""

    def __init__(self, model: onnx.ModelProto, missing: frozenset[str], *, aliased: bool = False) -> None:
        self.model, self.missing, self.aliased = model, missing, aliased
        self.types = element_types(model)
        self._producers = {output: node for node in model.graph.node for output in node.output}
        self._constants: dict[str, TensorProto] = {}
        self._plugins: list[dict[str, Any]] = []
        self._count: dict[str, int] = {}

    def run(self) -> Network:
        """The network; the model is changed in place."""
        graph = self.model.graph
        nodes = [new for node in graph.node for new in self._node(node)]
        for value in graph.input:
            if value.name == "tree_mask":
                value.type.tensor_type.elem_type = TensorProto.BOOL
        if self._plugins:
            graph.input.append(helper.make_tensor_value_info(LONGEST_QUERY, TensorProto.INT32, ["Q"]))
        del graph.node[:]
        graph.node.extend(nodes)
        if any(node.domain == PARSER_DOMAIN for node in nodes):
            self.model.opset_import.append(helper.make_opsetid(PARSER_DOMAIN, 1))
        graph.initializer.extend(self._constants[name] for name in sorted(self._constants))
        # types are TensorRT's business from here: ours may name operators that no schema knows
        del graph.value_info[:]
        return Network(
            model=self.model.SerializeToString(deterministic=True),
            inputs=[_describe(value) for value in graph.input],
            outputs=[value.name for value in graph.output],
            plugins=self._plugins,
            spelled_out=dict(sorted(self._count.items())),
        )

    def _node(self, node: NodeProto) -> Iterator[NodeProto]:
        if node.domain == opset.DOMAIN and node.op_type == opset.PAGED_ATTENTION:
            yield self._paged_attention(node)
        elif node.domain == opset.DOMAIN and node.op_type == opset.DYNAMIC_BLOCK_QUANTIZE:
            yield from dynamic_quantize(node, self.types)
        elif node.op_type == "DequantizeLinear" and integer_attribute(node, "block_size"):
            yield from typed_scales(node, self.types, self._producers)
        elif node.domain == "" and node.op_type in self.missing:
            self._count[node.op_type] = self._count.get(node.op_type, 0) + 1
            yield from {
                "RMSNormalization": self._rms_norm,
                "RotaryEmbedding": self._rotary,
                "Swish": self._swish,
            }[node.op_type](node)
        else:
            yield node

    def _constant(self, name: str, values: np.ndarray) -> str:
        name = f"trt_{name}"
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def _paged_attention(self, node: NodeProto) -> NodeProto:
        fields: dict[str, int | float] = {
            a.name: a.f if a.type == AttributeProto.FLOAT else int(a.i) for a in node.attribute
        }
        fields |= {"has_scales": 0, "has_tree_mask": 0, "has_sinks": 0, "aliased": int(self.aliased)}
        inputs = [*node.input[:_REQUIRED], LONGEST_QUERY]
        for position, flag in _OPTIONAL:
            if position < len(node.input) and node.input[position]:
                inputs.append(node.input[position])
                fields[flag] = 1
        check_fields(opset.PAGED_ATTENTION, node.name, fields)
        self._plugins.append({"op": opset.PAGED_ATTENTION, "node": node.name, "fields": fields})
        made = NodeProto(
            op_type=node.op_type, name=node.name, domain=node.domain, input=inputs, output=list(node.output)
        )
        marks = {"plugin_version": str(opset.SINCE[opset.PAGED_ATTENTION][-1]), "plugin_namespace": NAMESPACE}
        made.attribute.extend(helper.make_attribute(key, value) for key, value in {**fields, **marks}.items())
        return made

    def _rms_norm(self, node: NodeProto) -> Iterator[NodeProto]:
        """Over the last axis, statistics in float32, as the operator with ``stash_type`` 1 says."""
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        x, weight = node.input
        kind = self.types[x]
        part = _Parts(node)
        wide = part("wide", "Cast", [x], to=TensorProto.FLOAT)
        square = part("square", "Mul", [wide, wide])
        axes = self._constant("last_axis", np.array([-1], dtype=np.int64))
        mean = part("mean", "ReduceMean", [square, axes], keepdims=1)
        small = self._constant(f"epsilon_{epsilon.hex()}", np.array(epsilon, dtype=np.float32))
        root = part("root", "Sqrt", [part("shifted", "Add", [mean, small])])
        normed = part("normed", "Cast", [part("ratio", "Div", [wide, root])], to=kind)
        part("scaled", "Mul", [normed, weight], last=True)
        yield from part.nodes

    def _rotary(self, node: NodeProto) -> Iterator[NodeProto]:
        """[1, T, heads*E] with cos and sin [1, T, R/2]: of each head's first R values one half against the other."""
        attributes = {a.name: int(a.i) for a in node.attribute}
        if attributes.get("interleaved"):
            raise ValueError(f"{node.name}: only half rotation is spelled out")
        x, cos, sin = node.input
        part = _Parts(node)
        heads = attributes["num_heads"]
        split = self._constant(f"heads_{heads}", np.array([0, 0, heads, -1], dtype=np.int64))
        axis = self._constant("head_axis", np.array([2], dtype=np.int64))
        apart = part("heads", "Reshape", [x, split])
        rotary, rest = attributes.get("rotary_embedding_dim", 0), []
        if rotary:
            kept = [self._constant(f"slice_{value}", np.array([value])) for value in (rotary, _TO_THE_END, -1)]
            turned = [self._constant(f"slice_{value}", np.array([value])) for value in (0, rotary, -1)]
            rest = [part("kept", "Slice", [apart, *kept])]
            apart = part("turned", "Slice", [apart, *turned])
        first, second = part.many(["first", "second"], "Split", [apart], axis=-1, num_outputs=2)
        cosine, sine = (part(name, "Unsqueeze", [cache, axis]) for name, cache in (("cosine", cos), ("sine", sin)))
        real = part("real", "Sub", [part("a", "Mul", [first, cosine]), part("b", "Mul", [second, sine])])
        imaginary = part("imaginary", "Add", [part("c", "Mul", [first, sine]), part("d", "Mul", [second, cosine])])
        joined = part("joined", "Concat", [real, imaginary, *rest], axis=-1)
        flat = self._constant("flat", np.array([0, 0, -1], dtype=np.int64))
        part("rotated", "Reshape", [joined, flat], last=True)
        yield from part.nodes

    def _swish(self, node: NodeProto) -> Iterator[NodeProto]:
        alpha = next((a.f for a in node.attribute if a.name == "alpha"), 1.0)
        if not math.isclose(alpha, 1.0):
            raise ValueError(f"{node.name}: Swish with alpha {alpha} is not spelled out")
        part = _Parts(node)
        part("product", "Mul", [node.input[0], part("gate", "Sigmoid", [node.input[0]])], last=True)
        yield from part.nodes


class _Parts:
    """The nodes that replace one: named after it, the last one with its output."""

    def __init__(self, node: NodeProto) -> None:
        self.node = node
        self.nodes: list[NodeProto] = []

    def __call__(self, label: str, op: str, inputs: list[str], *, last: bool = False, **attributes: Any) -> str:
        return self.many([label], op, inputs, last=last, **attributes)[0]

    def many(
        self, labels: list[str], op: str, inputs: list[str], *, last: bool = False, **attributes: Any
    ) -> list[str]:
        outputs = [self.node.output[0]] if last else [f"{self.node.name}_{label}" for label in labels]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"{self.node.name}/{labels[0]}", **attributes))
        return outputs


def _describe(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.tensor_type
    shape = [size.dim_param or size.dim_value for size in kind.shape.dim]
    return {"name": value.name, "type": TensorProto.DataType.Name(kind.elem_type), "shape": shape}
