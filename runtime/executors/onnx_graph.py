"""Reads ``model.onnx`` and its external data into a small graph that the executors work on.

Policy: nothing is copied. Initializers stay in the safetensors files and are mapped privately; only
what a kernel packs is ever read. Everything the ONNX checker lets through but that would read wrong
memory later is refused here: a location that leaves the engine's folder, a range past the end of its
file, a length that does not fit dtype and shape. Opset versions are checked against what the
interpreter implements (default domain 23–24, ``trtforge`` 1).
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trtforge.ground.errors import ForgeError

SUPPORTED_OPSETS: dict[str, tuple[int, int]] = {"": (23, 24), "trtforge": (1, 2)}
#: bits of an element, by the names of onnx.TensorProto.DataType
ELEMENT_BITS = {
    "FLOAT": 32, "FLOAT16": 16, "BFLOAT16": 16, "DOUBLE": 64, "FLOAT8E4M3FN": 8, "FLOAT8E5M2": 8,
    "INT64": 64, "INT32": 32, "INT16": 16, "INT8": 8, "UINT8": 8, "BOOL": 8,
    "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4,
}  # fmt: skip
TORCH_DTYPES: dict[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "FLOAT16": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "DOUBLE": torch.float64,
    "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "FLOAT8E5M2": torch.float8_e5m2,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT16": torch.int16,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass
class Constant:
    """An initializer. ``data`` is the tensor, or for 4-bit types the uint8 bytes (low nibble first)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: torch.Tensor
    file: str | None = None

    @property
    def packed4(self) -> bool:
        """Whether two elements share a byte."""
        return ELEMENT_BITS[self.dtype] == 4

    @property
    def nbytes(self) -> int:
        """Bytes the initializer takes on disk."""
        return self.data.numel() * self.data.element_size()


@dataclass
class Node:
    """One operator call; absent optional inputs are empty strings."""

    op: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]

    @property
    def kind(self) -> str:
        """``op`` with its domain when it is not ONNX's own."""
        return f"{self.domain}::{self.op}" if self.domain else self.op

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value or ``default``."""
        return self.attributes.get(name, default)


@dataclass
class ValueInfo:
    """Type of a graph input or output; symbolic dimensions are strings."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass
class Graph:
    """Nodes in topological order with their constants."""

    nodes: list[Node]
    constants: dict[str, Constant]
    inputs: dict[str, ValueInfo]
    outputs: dict[str, ValueInfo]
    opsets: dict[str, int]
    directory: Path
    maps: list[mmap.mmap] = field(default_factory=list)

    def consumers(self) -> dict[str, list[Node]]:
        """Value name → the nodes that read it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    found.setdefault(name, []).append(node)
        return found

    def producers(self) -> dict[str, Node]:
        """Value name → the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}


def load_graph(path: Path) -> Graph:
    """Read ``path`` (``model.onnx``); weights stay mapped from the files beside it.

    Raises:
        ForgeError: TF-RUN-004 no valid ONNX file, TF-RUN-005 external data missing, truncated or
            outside the folder, TF-RUN-006 opset not supported, TF-RUN-014 its parts do not fit together.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError as error:
        raise ForgeError(
            "TF-RUN-004",
            f"{path} does not exist",
            asked=str(path),
            why="an engine directory holds its graph as model.onnx",
            remedies=["build the engine again"],
        ) from error
    except Exception as error:  # protobuf raises its own family
        raise ForgeError(
            "TF-RUN-004",
            f"{path.name} is not a readable ONNX model: {error}",
            asked=str(path),
            why="the protobuf could not be parsed, so the file is damaged or something else",
            remedies=["build the engine again", "run `trtforge verify` on the bundle to find damaged files"],
        ) from error
    opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import}
    _check_opsets(opsets)
    reader = _ExternalData(path.parent)
    with coherent(path.parent):
        constants = {tensor.name: _constant(tensor, reader) for tensor in model.graph.initializer}
        nodes = list(_nodes(model.graph, reader, constants))
        graph = Graph(
            nodes=nodes,
            constants=constants,
            inputs={v.name: _value_info(v) for v in model.graph.input if v.name not in constants},
            outputs={v.name: _value_info(v) for v in model.graph.output},
            opsets=opsets,
            directory=path.parent,
            maps=list(reader.maps.values()),
        )
        _check_values(graph)
    return graph


@contextlib.contextmanager
def coherent(directory: Path) -> Iterator[None]:
    """While a graph is read and bound: what breaks is the graph's fault, whatever Python or torch calls it.

    Raises:
        ForgeError: ``TF-RUN-014``.
    """
    try:
        yield
    # shapes that do not fit, names that nobody makes, attributes of another type, dimensions below zero
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, AssertionError) as error:
        raise ForgeError(
            "TF-RUN-014",
            f"the parts of the graph do not fit together: {f'{type(error).__name__}: {error}'[:300]}",
            asked=str(directory / "model.onnx"),
            why="the file can be parsed, but is not what a build writes: it was changed or damaged",
            remedies=["run `trtforge verify` on the bundle to find damaged files", "build the engine again"],
        ) from error


def _check_values(graph: Graph) -> None:
    """Every value is made once, before it is read."""
    made = {*graph.constants, *graph.inputs}
    for node in graph.nodes:
        absent = [name for name in node.inputs if name and name not in made]
        if absent:
            raise ValueError(f"node {node.name or node.op} reads {absent[0]!r}, which nothing before it makes")
        twice = [name for name in node.outputs if name and name in made]
        if twice:
            raise ValueError(f"node {node.name or node.op} makes {twice[0]!r} again")
        made.update(name for name in node.outputs if name)
    absent = [name for name in graph.outputs if name not in made]
    if absent:
        raise ValueError(f"nothing makes the output {absent[0]!r}")


def _check_opsets(opsets: dict[str, int]) -> None:
    wrong = {
        domain or "ai.onnx": version
        for domain, version in opsets.items()
        if domain not in SUPPORTED_OPSETS or not SUPPORTED_OPSETS[domain][0] <= version <= SUPPORTED_OPSETS[domain][1]
    }
    if wrong or "" not in opsets:
        raise ForgeError(
            "TF-RUN-006",
            "the graph uses operator sets that this runtime does not implement",
            numbers={"asked": wrong, "supported": {k or "ai.onnx": list(v) for k, v in SUPPORTED_OPSETS.items()}},
            why="an operator's meaning depends on its version; running another version would be a guess",
            remedies=["build the engine again with this version of trtforge", "use the version that built it"],
        )


def _nodes(graph: Any, reader: _ExternalData, constants: dict[str, Constant]) -> Iterator[Node]:
    import onnx

    for proto in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            constants[proto.output[0]] = _constant_node(proto.output[0], attributes, reader)
            continue
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        yield Node(proto.op_type, domain, proto.name, list(proto.input), list(proto.output), attributes)


def _constant_node(name: str, attributes: dict[str, Any], reader: _ExternalData) -> Constant:
    if "value" in attributes:
        constant = _constant(attributes["value"], reader)
        constant.name = name
        return constant
    kinds = {
        "value_int": torch.int64,
        "value_ints": torch.int64,
        "value_float": torch.float32,
        "value_floats": torch.float32,
    }
    for key, dtype in kinds.items():
        if key in attributes:
            data = torch.tensor(attributes[key], dtype=dtype)
            return Constant(name, "INT64" if dtype == torch.int64 else "FLOAT", tuple(data.shape), data)
    raise ForgeError(
        "TF-RUN-007",
        f"Constant node {name} holds a kind of value that is not supported",
        numbers={"attributes": sorted(attributes)},
        remedies=["emit the constant as an initializer"],
    )


def _value_info(value: Any) -> ValueInfo:
    import onnx

    tensor = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return ValueInfo(value.name, onnx.TensorProto.DataType.Name(tensor.elem_type), shape)


def _constant(tensor: Any, reader: _ExternalData) -> Constant:
    import onnx

    dtype = onnx.TensorProto.DataType.Name(tensor.data_type)
    shape = tuple(tensor.dims)
    if dtype not in ELEMENT_BITS:
        raise ForgeError(
            "TF-RUN-009",
            f"initializer {tensor.name} has element type {dtype}",
            numbers={"supported": sorted(ELEMENT_BITS)},
            why="no operator of the graph contract takes this type",
            remedies=["build the engine again with this version of trtforge"],
        )
    count = math.prod(shape)
    nbytes = (count * ELEMENT_BITS[dtype] + 7) // 8
    torch_dtype = TORCH_DTYPES.get(dtype, torch.uint8)
    file = None
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        entries = {e.key: e.value for e in tensor.external_data}
        file = entries.get("location", "")
        flat = reader.read(tensor.name, entries, nbytes, torch_dtype)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != nbytes:
            raise _wrong_length(tensor.name, len(tensor.raw_data), nbytes, dtype, shape)
        flat = (
            torch.frombuffer(bytearray(tensor.raw_data), dtype=torch_dtype)
            if nbytes
            else torch.empty(0, dtype=torch_dtype)
        )
    else:
        import numpy as np

        array = onnx.numpy_helper.to_array(tensor)
        if torch_dtype.is_floating_point and torch_dtype not in (torch.float32, torch.float64, torch.float16):
            flat = torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))).flatten().to(torch_dtype)
        else:
            flat = torch.from_numpy(np.ascontiguousarray(array)).flatten().to(torch_dtype)
    if ELEMENT_BITS[dtype] == 4:
        return Constant(tensor.name, dtype, shape, flat, file)
    return Constant(tensor.name, dtype, shape, flat.view(shape), file)


def _wrong_length(name: str, have: int, need: int, dtype: str, shape: tuple[int, ...]) -> ForgeError:
    return ForgeError(
        "TF-RUN-009",
        f"initializer {name} holds {have} bytes where {dtype}{list(shape)} takes {need}",
        numbers={"bytes": have, "needed": need, "shape": list(shape), "dtype": dtype},
        why="reading it would take neighbouring data for weights",
        remedies=["build the engine again"],
    )


class _ExternalData:
    """Maps the files that initializers point into, each once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.maps: dict[str, mmap.mmap] = {}

    def read(self, name: str, entries: dict[str, str], nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", nbytes))
        except ValueError:
            offset, length = -1, -1
        if length != nbytes or offset < 0:
            raise ForgeError(
                "TF-RUN-009",
                f"initializer {name} points to {length} bytes at offset {offset}; its type takes {nbytes}",
                numbers={"offset": offset, "length": length, "needed": nbytes},
                why="reading it would take neighbouring data for weights",
                remedies=["build the engine again"],
            )
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        mapped = self._map(name, location)
        if offset + nbytes > len(mapped):
            raise ForgeError(
                "TF-RUN-005",
                f"{location} ends before initializer {name}",
                asked=str(self.directory / location),
                numbers={"file_bytes": len(mapped), "needed_bytes": offset + nbytes},
                why="the file is truncated or not the one the graph was written for",
                remedies=["copy the engine directory again", "build the engine again"],
            )
        itemsize = torch.empty(0, dtype=dtype).element_size()
        if offset % itemsize:  # an unaligned range cannot be viewed; ranges that small or odd are rare
            return torch.frombuffer(bytearray(mapped[offset : offset + nbytes]), dtype=dtype)
        return torch.frombuffer(mapped, dtype=dtype, count=nbytes // itemsize, offset=offset)

    def _map(self, name: str, location: str) -> mmap.mmap:
        if location in self.maps:
            return self.maps[location]
        path = (self.directory / location).resolve()
        if not location or self.directory not in path.parents:
            raise ForgeError(
                "TF-RUN-005",
                f"initializer {name} points outside the engine directory",
                asked=location,
                why="an engine is self-contained; following such a path would read arbitrary files",
                remedies=["build the engine again"],
            )
        try:
            with path.open("rb") as file:
                # a private mapping: torch wants writable memory, nothing is ever written back
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise ForgeError(
                "TF-RUN-005",
                f"weights file {location} cannot be mapped: {error}",
                asked=str(path),
                why="the graph's initializers point into it",
                remedies=["copy the engine directory again", "build the engine again"],
            ) from error
        self.maps[location] = mapped
        return mapped
