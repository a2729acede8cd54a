"""The raw ops of a written graph: the same list that the sizes give, from the nodes of ``model.onnx``.

Policy: only nodes that depend on the tokens run in a step; what depends on weights or positions alone (casts and
de-quantization of weights, rotary tables) is prepared at build time or is a table of a few kilobytes. Views move
nothing. An operator that is not known here is counted as pointwise over the values that it reads and writes, so a
new family's graph gives a plan and not a refusal. Imports ``onnx``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.planner.speed.ops import Attention, Linear, Op, Pointwise, Rows, Split, activation_format
from builder.planner.types import bad_input
from trtforge.formats.pools import pools
from trtforge.formats.table import load_formats

_VIEWS = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Flatten"})
#: nodes between a linear and the op that made its input
_ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicBlockQuantize", "Cast"})
_LAYER = re.compile(r"\.layers\.\d+\.")
_COLUMNS = ("o_proj", "down_proj")
_PREPARES = frozenset({"Transpose", "DequantizeLinear", "Cast"})


@dataclass(frozen=True)
class _Value:
    """A tensor of the graph: its rows (T or L), the values of a row, and the op that made it."""

    rows: Rows
    width: int
    maker: str


def ops_of_graph(path: Path) -> list[Op]:
    """The raw ops of ``model.onnx`` in ``path`` (a directory or the file), layers counted together.

    Raises:
        ForgeError: ``TF-PLN-054`` the file cannot be read as a graph of this package.
    """
    import onnx

    file = path / "model.onnx" if path.is_dir() else path
    try:
        model = onnx.load(str(file), load_external_data=False)
    except Exception as error:  # protobuf's and onnx's own classes, whose places move between versions
        raise _unreadable(file, str(error)) from error
    names = {value.name for value in model.graph.input}
    if "input_ids" not in names or "logit_indices" not in names:
        raise _unreadable(file, "it has no inputs input_ids and logit_indices")
    ops = _Reader(model.graph).ops()
    if not any(isinstance(op, Attention) for op in ops):
        raise _unreadable(file, "it has no PagedAttention (native graphs pad their batches)")
    return ops


def _stored_format(onnx_type: int) -> str:
    """The planner's format of weights of an ONNX type; what is no weight's type counts as bfloat16."""
    from onnx import TensorProto

    element = TensorProto.DataType.Name(onnx_type)
    stored = {
        row.weight.dtype.replace("_", "").upper(): row.name for row in reversed(load_formats().formats) if row.weight
    }
    return stored.get(element) or _pool_format(element)


def _pool_format(element: str) -> str:
    """The planner's format of a KV pool's elements, or of plain weights."""
    return next((name for name, pool in pools().items() if pool.onnx == element), "bfloat16")


class _Reader:
    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        infos = (*graph.value_info, *graph.input, *graph.output)
        self.shapes = {info.name: info.type.tensor_type for info in infos}
        self.makers = {output: node for node in graph.node for output in node.output}
        self.values: dict[str, _Value] = {"input_ids": _Value("tokens", 1, "input_ids")}
        self.counted: Counter[Op] = Counter()

    def ops(self) -> list[Op]:
        """Every op of the graph, equal ones merged, in the order of their first node."""
        for node in self.graph.node:
            if not any(name in self.values for name in node.input):
                continue
            op = self._op(node)
            if op is not None:
                self.counted[op] += 1
        return [replace(op, count=count) for op, count in self.counted.items()]

    def _op(self, node: Any) -> Op | None:
        module = _module(node.name)
        source = self.values[next(name for name in node.input if name in self.values)]
        rows = self._rows(node, source.rows)
        maker = source.maker if node.op_type in _VIEWS | _ROUNDING else module
        if node.op_type == "Mul" and node.name.endswith("pre_quant_scale"):
            maker = source.maker
        for output in node.output:
            if output and not output.startswith("kv_pool"):
                self.values[output] = _Value(rows, self._width(output), maker)
        if node.op_type in _VIEWS:
            return None
        if node.op_type == "MatMul":
            return self._linear(node, module, source, rows)
        if node.op_type == "PagedAttention":
            return self._attention(node, module)
        if node.op_type == "Add" and node.input[1] not in self.values:
            return None  # a bias rides in its linear
        if node.op_type == "Mul" and maker != module:
            return None  # so does AWQ's factor, folded into the op before
        return self._pointwise(node, module, rows)

    def _rows(self, node: Any, rows: Rows) -> Rows:
        return "logits" if node.op_type == "Gather" and "logit_indices" in node.input else rows

    def _width(self, name: str) -> int:
        """Values a row: the product of the dimensions with a size."""
        tensor = self.shapes.get(name)
        width = 1
        for dim in tensor.shape.dim if tensor is not None else ():
            width *= dim.dim_value if dim.HasField("dim_value") else 1
        return width

    def _linear(self, node: Any, module: str, source: _Value, rows: Rows) -> Linear:
        n, k, weights = self._weight(node.input[1])
        maker = self.makers.get(node.input[0])
        rounded = maker is not None and maker.op_type in _ROUNDING - {"Cast"}
        activations = activation_format(weights) if rounded else None
        split: Split = "columns" if module.endswith(_COLUMNS) else "rows"
        return Linear(module, n, k, weights, activations, source.maker, rows, split)

    def _weight(self, name: str) -> tuple[int, int, str]:
        """[N, K] and the stored format of a linear's weight, behind the nodes that prepare it."""
        while name not in self.constants:
            node = self.makers.get(name)
            if node is None or node.op_type not in _PREPARES:
                raise _unreadable(Path("model.onnx"), f"the weight of a linear is made by {node and node.op_type}")
            name = node.input[0]
        tensor = self.constants[name]
        return tensor.dims[0], tensor.dims[1], _stored_format(tensor.data_type)

    def _attention(self, node: Any, module: str) -> Attention:
        values = {item.name: item for item in node.attribute}
        from onnx import TensorProto

        pool = self.shapes[node.input[3]].elem_type
        return Attention(
            module,
            values["num_heads"].i,
            values["num_kv_heads"].i,
            values["head_size"].i,
            values["sliding_window"].i if "sliding_window" in values else 0,
            _pool_format(TensorProto.DataType.Name(pool)),
        )

    def _pointwise(self, node: Any, module: str, rows: Rows) -> Pointwise:
        writes = sum(self.values[name].width for name in node.output if name in self.values)
        if node.op_type == "Gather":
            reads = writes
        else:
            reads = sum(self.values[name].width for name in node.input if name in self.values)
        whole = node.op_type in ("Gather", "Add") or module.endswith("norm") or module == "model.norm"
        inside = module.endswith(("q_norm", "k_norm"))
        split: Split = "none" if whole and not inside else "rows"
        return Pointwise(module, node.op_type, reads, writes, rows, split)


def _module(name: str) -> str:
    """``/model/layers.3/self_attn/q_proj/MatMul`` -> ``model.layers.*.self_attn.q_proj``."""
    path = name.strip("/").rpartition("/")[0].replace("/", ".")
    for tail in (".attention_residual", ".mlp_residual"):
        path = path.removesuffix(tail)
    return _LAYER.sub(".layers.*.", f"{path}.").removesuffix(".")


def _unreadable(file: Path, reason: str) -> Exception:
    return bad_input(
        "TF-PLN-054",
        f"{file} is no graph of this program: {reason}",
        asked=str(file),
        why="Ops and shapes are read from the graph that the graph stage writes.",
        remedies=[
            "trtforge run RECIPE --until graph --force graph",
            "leave the graph out: the sizes give the same ops",
        ],
    )
