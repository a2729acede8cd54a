"""Finds the shapes of computation that have fast kernels in a graph of plain ONNX operators.

Policy: a match proves every condition it relies on (constant operands, axes, single consumers,
default attributes); anything else is left to the interpreter, slower and still right. Nothing here
runs a kernel or touches more than small constants; weights are only referred to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.executors.interpreter import constant_value, run_node
from runtime.executors.onnx_graph import Constant, Graph, Node
from runtime.executors.onnx_ops import OpContext
from runtime.executors.weights import LinearSource
from trtforge.formats import format_of_kind, formats
from trtforge.formats.base import Format

_SHAPE_ONLY = ("Unsqueeze", "Squeeze", "Reshape", "Identity")
_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16")
_FORMAT_OF = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}


@dataclass(frozen=True)
class InputQuant:
    """What happens to a linear's input first: a format's rounding (its ``kind``), or a factor a column (``scale``).

    Attributes:
        factors: the constant [K] that the columns are multiplied by, before a rounding; empty: by none.
    """

    kind: str
    scale: float = 1.0
    factors: str = ""

    @property
    def method(self) -> Format | None:
        """The format whose rounding it is; None for factors."""
        return format_of_kind(self.kind)


@dataclass
class LinearMatch:
    """One linear: the value it reads, what is done to that value, the weight, and the value it makes."""

    node: Node
    source: str
    output: str
    quant: InputQuant | None
    weight: LinearSource
    covered: set[int] = field(default_factory=set)


class GraphView:
    """Lookups over a graph that matching needs: producers, consumers, constants, element types."""

    def __init__(self, graph: Graph, context: OpContext) -> None:
        self.graph, self.context = graph, context
        self.producer = graph.producers()
        self.consumers = graph.consumers()
        self.index = {id(node): i for i, node in enumerate(graph.nodes)}
        self._evaluated: dict[str, Any] = {}
        self.constant: set[str] = set(graph.constants)
        self.positional: set[str] = {"positions"}
        for node in graph.nodes:
            names = [n for n in node.inputs if n]
            if all(n in self.constant for n in names):
                self.constant.update(node.outputs)
            elif all(n in self.constant or n in self.positional for n in names) and node.kind != "Shape":
                self.positional.update(node.outputs)
        self.dtype = self._infer_types()

    def only_consumer(self, name: str) -> Node | None:
        """The single node that reads ``name``, or None (also when it is an output of the graph)."""
        users = self.consumers.get(name, [])
        return users[0] if len(users) == 1 and name not in self.graph.outputs else None

    def evaluate(self, name: str) -> Any:
        """The value of a constant expression (memoized; small ones only are worth asking for)."""
        if name not in self._evaluated:
            if name in self.graph.constants:
                self._evaluated[name] = constant_value(self.graph.constants[name], self.context)
            else:
                node = self.producer[name]
                values = {n: self.evaluate(n) for n in node.inputs if n}
                self._evaluated.update(run_node(node, values, self.context))
        return self._evaluated[name]

    def evaluate_once(self, name: str) -> Any:
        """The value of a constant expression that is too large to be kept here."""
        value = self.evaluate(name)
        self._evaluated.pop(name, None)
        return value

    def scalar(self, name: str) -> float | None:
        if name not in self.constant:
            return None
        value = self.evaluate(name)
        return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    def raw(self, name: str) -> Constant | None:
        """The initializer ``name``, when it is one."""
        return self.graph.constants.get(name)

    def is_alias(self, node: Node) -> bool:
        """Whether a node hands its input on unchanged in the program's number format."""
        if node.kind == "Identity":
            return True
        if node.kind != "Cast":
            return False
        have, want = self.dtype.get(node.inputs[0]), self.dtype.get(node.outputs[0])
        return have is not None and have == want

    def through_shapes(self, name: str) -> tuple[str, set[int]]:
        """Walk up through operators that only change the shape; returns (value, covered nodes)."""
        covered: set[int] = set()
        while (node := self.producer.get(name)) and node.kind in _SHAPE_ONLY and self.only_consumer(name):
            covered.add(self.index[id(node)])
            name = node.inputs[0]
        return name, covered

    def _infer_types(self) -> dict[str, torch.dtype]:
        """Element types in the program's number format, as far as they follow from the operators."""
        types: dict[str, torch.dtype] = {}
        for name, info in self.graph.inputs.items():
            types[name] = self.context.dtype(info.dtype)
        for name, constant in self.graph.constants.items():
            if not constant.packed4:
                types[name] = self.context.dtype(constant.dtype)
        for node in self.graph.nodes:
            first = next((types[n] for n in node.inputs if n in types), None)
            if node.kind in ("Cast", "DequantizeLinear"):
                code = node.attribute("to") or node.attribute("output_dtype", 0)
                scale = types.get(node.inputs[1]) if len(node.inputs) > 1 else None
                first = self.context.dtype(_type_name(code)) if code else scale
            elif node.kind == "QuantizeLinear":
                code = node.attribute("output_dtype", 0)
                zero = types.get(node.inputs[2]) if len(node.inputs) > 2 else None
                first = self.context.dtype(_type_name(code)) if code else zero
            elif node.kind in ("Shape",):
                first = torch.int64
            elif node.kind in ("Equal", "Less"):
                first = torch.bool
            if first is not None:
                for output in node.outputs:
                    types[output] = first
            if node.kind == "trtforge::PagedAttention" and len(node.outputs) > 1:
                types[node.outputs[1]] = types[node.inputs[3]]
        return types


def _type_name(code: int) -> str:
    """ONNX's name of an element type's number."""
    import onnx

    return str(onnx.TensorProto.DataType.Name(code))


def match_linear(view: GraphView, node: Node) -> LinearMatch | None:
    """Recognize a MatMul or Gemm with a constant weight, with its quantization and bias."""
    if node.kind == "MatMul":
        weight_name, transposed = node.inputs[1], True
    elif node.kind == "Gemm" and not node.attribute("transA", 0) and node.attribute("alpha", 1.0) == 1.0:
        weight_name, transposed = node.inputs[1], not node.attribute("transB", 0)
    else:
        return None
    if weight_name not in view.constant or node.inputs[0] in view.constant:
        return None
    covered = {view.index[id(node)]}
    producer = view.producer.get(weight_name)
    if producer is not None and producer.kind == "Transpose" and (producer.attribute("perm") or [1, 0]) == [1, 0]:
        weight_name, transposed = producer.inputs[0], not transposed
    weight = _weight(view, weight_name, transposed, _module(node))
    if weight is None:
        return None
    output = node.outputs[0]
    if node.kind == "Gemm" and len(node.inputs) > 2 and node.inputs[2]:
        if node.inputs[2] not in view.constant or node.attribute("beta", 1.0) != 1.0:
            return None
        weight.bias = _vector(view, node.inputs[2], weight.shape[0])
        if weight.bias is None:
            return None
    elif (user := view.only_consumer(output)) is not None and user.kind == "Add":
        other = user.inputs[1] if user.inputs[0] == output else user.inputs[0]
        bias = _vector(view, other, weight.shape[0]) if other in view.constant else None
        if bias is not None:
            weight.bias, output = bias, user.outputs[0]
            covered.add(view.index[id(user)])
    source, quant, quantizers = _input(view, node.inputs[0], weight.shape[1])
    return LinearMatch(node, source, output, quant, weight, covered | quantizers)


def _module(node: Node) -> str:
    """The module path that the node's name carries, dotted."""
    return node.name.rsplit("/", 1)[0].strip("/").replace("/", ".") or node.name


def _vector(view: GraphView, name: str, width: int) -> torch.Tensor | None:
    value = view.evaluate(name)
    if isinstance(value, torch.Tensor) and value.numel() == width and value.shape[-1] == width:
        return value.flatten()
    return None


def _weight(view: GraphView, name: str, transposed: bool, module: str) -> LinearSource | None:
    constant = view.raw(name)
    node = view.producer.get(name)
    if constant is None and node is not None and node.kind == "Cast" and view.raw(node.inputs[0]) is not None:
        constant = view.raw(node.inputs[0])  # a float weight stored in another type than the model's
    if constant is not None:
        if constant.dtype not in _FLOATS or len(constant.shape) != 2:
            return None
        shape = constant.shape[::-1] if transposed else constant.shape
        return LinearSource(module, (shape[0], shape[1]), _FORMAT_OF[constant.dtype], constant, transposed=transposed)
    if node is not None and node.kind == "DequantizeLinear" and not transposed:
        quantized = _quantized_weight(view, node, module)
        if quantized is not None:
            return quantized
    value = view.evaluate_once(name)  # any other constant expression: a dense weight
    if not isinstance(value, torch.Tensor) or value.dim() != 2 or not value.dtype.is_floating_point:
        return None
    rows, columns = value.shape[::-1] if transposed else value.shape
    kind = str(value.dtype).removeprefix("torch.")
    source = LinearSource(module, (rows, columns), kind, value, transposed=transposed)
    source.again = lambda: view.evaluate_once(name)
    return source


def _quantized_weight(view: GraphView, node: Node, module: str) -> LinearSource | None:
    for format in formats():
        stored = format.stored_of(view, node)
        if stored is None or len(stored.shape) != 2:
            continue
        shape = (stored.shape[0], stored.shape[1])
        found = format.match_weight(view, node, stored)
        if found is not None:
            return LinearSource(module, shape, format.kind, stored, found.scale, found.block_scales, found.group)
    return None


def _input(view: GraphView, name: str, width: int) -> tuple[str, InputQuant | None, set[int]]:
    """(the value before quantization, the quantization, covered nodes) of a linear's input."""
    node = view.producer.get(name)
    if node is None:
        return name, None, set()
    for format in formats():
        found = format.match_input(view, node)
        if found is not None:
            source, factors, nodes = _factored(view, found.source, width)
            return source, InputQuant(format.kind, found.scale, factors), set(found.nodes | nodes)
    source, factors, nodes = _factored(view, name, width)
    return source, InputQuant("scale", 1.0, factors) if factors else None, set(nodes)


def _factored(view: GraphView, name: str, width: int) -> tuple[str, str, frozenset[int]]:
    """(the value before its columns are multiplied by factors, the factors or "", covered nodes)."""
    node = view.producer.get(name)
    if node is not None and node.kind == "Mul":
        for source, factors in (node.inputs, node.inputs[::-1]):
            if factors in view.constant and source not in view.constant and _vector(view, factors, width) is not None:
                return source, factors, frozenset({view.index[id(node)]})
    return name, "", frozenset()


@dataclass(frozen=True)
class HeadNorm:
    """An RMS norm over each head, or over all heads together: the name of its weight [E] or [H*E], and its epsilon."""

    weight: str
    epsilon: float


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of each head's first ``size`` values, with cos and sin [T, size/2] made from positions."""

    cos: str
    sin: str
    size: int


@dataclass
class AttentionMatch:
    """PagedAttention whose queries and keys come from rotary embeddings with common caches or from none, and before
    that perhaps from norms."""

    node: Node
    q: str
    k: str
    v: str
    rotary: Rotary | None
    q_norm: HeadNorm | None
    k_norm: HeadNorm | None
    covered: set[int]


def match_attention(view: GraphView, node: Node) -> AttentionMatch | None:
    """Recognize norms and rotary embedding of q and k in front of a PagedAttention node."""
    found = []
    covered = {view.index[id(node)]}
    heads, size = (
        (int(node.attribute("num_heads")), int(node.attribute("num_kv_heads"))),
        int(node.attribute("head_size")),
    )
    for name, count in zip(node.inputs[:2], heads, strict=True):
        base, nodes = view.through_shapes(name)
        producer, rotary = view.producer.get(base), None
        if producer is not None and producer.kind == "RotaryEmbedding":
            rotary = _rotary(view, producer, count, size)
            if rotary is None or view.only_consumer(base) is None:
                return None
            base, before = view.through_shapes(producer.inputs[0])
            nodes |= before | {view.index[id(producer)]}
        norm, over = _head_norm(view, base, (size, count * size))
        if norm is not None:
            base, before = view.through_shapes(view.producer[base].inputs[0])
            nodes |= before | over
        if view.only_consumer(base) is None:
            return None
        covered |= nodes
        found.append((base, norm, rotary))
    (q, q_norm, rotary), (k, k_norm, of_keys) = found
    if rotary != of_keys:
        return None
    return AttentionMatch(node, q, k, node.inputs[2], rotary, q_norm, k_norm, covered)


def _rotary(view: GraphView, node: Node, heads: int, head_size: int) -> Rotary | None:
    """The rotation by halves of ``heads`` heads whose angles follow from the positions alone."""
    plain = not node.attribute("interleaved", 0) and node.attribute("num_heads", 0) == heads
    names = [name for name in node.inputs if name]
    if not plain or len(names) != 3 or not view.positional.issuperset(names[1:]):
        return None
    return Rotary(names[1], names[2], int(node.attribute("rotary_embedding_dim", 0)) or head_size)


def _head_norm(view: GraphView, name: str, widths: tuple[int, ...]) -> tuple[HeadNorm | None, set[int]]:
    """The norm that makes ``name`` for one reader: over the last axis, with as many weights as one of ``widths``."""
    node = view.producer.get(name)
    if node is None or node.kind != "RMSNormalization" or view.only_consumer(name) is None:
        return None, set()
    weighted = node.inputs[1] in view.constant and any(
        _vector(view, node.inputs[1], width) is not None for width in widths
    )
    if not weighted or node.attribute("axis", -1) != -1:
        return None, set()
    return HeadNorm(node.inputs[1], node.attribute("epsilon", 1e-5)), {view.index[id(node)]}


@dataclass(frozen=True)
class ScaleMatch:
    """``output`` is ``source`` times ``factor``, perhaps in a wider type between two casts."""

    source: str
    output: str
    factor: float


def match_scale(view: GraphView, node: Node) -> ScaleMatch | None:
    """Recognize the product of a value and a constant number."""
    if node.kind != "Mul":
        return None
    for source, number in (node.inputs, node.inputs[::-1]):
        factor = view.scalar(number)
        if factor is None or source in view.constant:
            continue
        output, wider = node.outputs[0], view.producer.get(source)
        narrower = view.only_consumer(output)
        if (
            wider is not None
            and narrower is not None
            and wider.kind == narrower.kind == "Cast"
            and view.dtype.get(wider.inputs[0]) == view.dtype.get(narrower.outputs[0])
        ):
            return ScaleMatch(wider.inputs[0], narrower.outputs[0], factor)
        return ScaleMatch(source, output, factor)
    return None


def match_gated(view: GraphView, node: Node) -> tuple[str, str, set[int]] | None:
    """Recognize silu(gate) · up; returns (gate, up, covered nodes)."""
    if node.kind != "Mul":
        return None
    for activated, up in (node.inputs, node.inputs[::-1]):
        inner = view.producer.get(activated)
        if inner is None or view.only_consumer(activated) is None or up in view.constant:
            continue
        if inner.kind == "Swish" and inner.attribute("alpha", 1.0) == 1.0:
            return inner.inputs[0], up, {view.index[id(node)], view.index[id(inner)]}
        if inner.kind == "Mul":
            for gate, sigmoid_name in (inner.inputs, inner.inputs[::-1]):
                sigmoid = view.producer.get(sigmoid_name)
                if (
                    sigmoid is not None
                    and sigmoid.kind == "Sigmoid"
                    and sigmoid.inputs[0] == gate
                    and view.only_consumer(sigmoid_name) is not None
                ):
                    return gate, up, {view.index[id(n)] for n in (node, inner, sigmoid)}
    return None
