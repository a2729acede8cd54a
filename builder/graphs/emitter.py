"""Writes ONNX nodes and initializers; knows nothing of models.

Policy: weights are initializers that point into the checkpoint's files by offset (file names relative
to the folder of the graph); only constants of a few bytes are stored inside the graph. Names of nodes
carry the Hugging Face module path, so a node can be found from a module's name and back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from trtforge.ground.safetensors_header import TensorInfo

#: safetensors type -> ONNX type
ONNX_TYPES = {
    "F32": TensorProto.FLOAT,
    "F16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "F8_E4M3": TensorProto.FLOAT8E4M3FN,
    "I8": TensorProto.INT8,
}
#: element type of a model, by its name in recipes and graph.json
MODEL_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def scope_of(module: str) -> str:
    """``model.layers.3.mlp`` as a node's path: ``/model/layers.3/mlp``."""
    return "/" + re.sub(r"\.(?!\d)", "/", module)


class Emitter:
    """Collects one graph. Values are handled by their names."""

    def __init__(self) -> None:
        self.graph = GraphProto(name="model")
        self.types: dict[str, int] = {}
        self._names: set[str] = set()
        self._initializers: dict[str, TensorProto] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        scope: str,
        *,
        label: str | None = None,
        output: str | None = None,
        outputs: Sequence[str] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node ``scope/label`` (label: the op's name) and return the name of its first output."""
        name = f"{scope}/{label or op}"
        if name in self._names:
            raise ValueError(f"two nodes are called {name}")
        self._names.add(name)
        results = list(outputs) if outputs is not None else [output or f"{name}_output_0"]
        node = NodeProto(op_type=op, name=name, domain=domain, input=list(inputs), output=results)
        node.attribute.extend(_attribute(key, value) for key, value in attributes.items())
        self.graph.node.append(node)
        return results[0]

    def external(
        self, name: str, info: TensorInfo, *, onnx_type: int | None = None, shape: Sequence[int] | None = None
    ) -> str:
        """An initializer that points at a tensor of a safetensors file (added once, however often it is asked for)."""
        if name in self._initializers:
            return name
        tensor = TensorProto(
            name=name,
            data_type=ONNX_TYPES[info.dtype] if onnx_type is None else onnx_type,
            dims=list(info.shape if shape is None else shape),
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", info.file), ("offset", info.offset), ("length", info.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return self._add(tensor)

    def constant(self, name: str, values: np.ndarray, *, onnx_type: int | None = None) -> str:
        """A small initializer stored in the graph (added once)."""
        if name in self._initializers:
            return name
        tensor = numpy_helper.from_array(np.ascontiguousarray(values), name)
        if onnx_type is not None:
            tensor.data_type = onnx_type
        return self._add(tensor)

    def _add(self, tensor: TensorProto) -> str:
        self._initializers[tensor.name] = tensor
        self.types[tensor.name] = tensor.data_type
        self.graph.initializer.append(tensor)
        return str(tensor.name)

    def cast(self, value: str, have: int, want: int, scope: str, label: str = "Cast") -> str:
        """``value`` as ``want``; no node when it is that already."""
        return value if have == want else self.node("Cast", [value], scope, label=label, to=want)

    def axes(self, axis: int) -> str:
        """The constant int64 [1] that Unsqueeze and Squeeze take."""
        return self.constant(f"axes_{axis}", np.array([axis], dtype=np.int64))

    def input(self, name: str, onnx_type: int, shape: Sequence[int | str]) -> str:
        self.graph.input.append(_value(name, onnx_type, shape))
        return name

    def output(self, name: str, onnx_type: int, shape: Sequence[int | str]) -> None:
        self.graph.output.append(_value(name, onnx_type, shape))


def _attribute(key: str, value: Any) -> AttributeProto:
    return helper.make_attribute(key, value)


def _value(name: str, onnx_type: int, shape: Sequence[int | str]) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = onnx_type
    dims = info.type.tensor_type.shape
    assert isinstance(dims, TensorShapeProto)
    for size in shape:
        dim = dims.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size
    return info
