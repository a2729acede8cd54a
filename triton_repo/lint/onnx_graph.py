"""The inputs and outputs of an ONNX file, read without the weights between them.

The file is walked field by field, and what is not asked for is skipped by its length: a model of many gigabytes takes
as long as one of the same graph without weights. Nothing is imported but the standard library.

Source of the numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triton_repo.lint.files import Unreadable, inside

#: ONNX's element types as Triton names them (both are enumerations of their formats)
TYPES = {
    1: "TYPE_FP32",
    2: "TYPE_UINT8",
    3: "TYPE_INT8",
    4: "TYPE_UINT16",
    5: "TYPE_INT16",
    6: "TYPE_INT32",
    7: "TYPE_INT64",
    8: "TYPE_STRING",
    9: "TYPE_BOOL",
    10: "TYPE_FP16",
    11: "TYPE_FP64",
    12: "TYPE_UINT32",
    13: "TYPE_UINT64",
    16: "TYPE_BF16",
}
#: the other values of a ``TypeProto``, by field
_KINDS = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}
_GRAPH, _INITIALIZER, _INPUT, _OUTPUT = 7, 5, 11, 12
#: fields that are walked at most; a graph with more is not judged
_MOST_FIELDS = 500_000


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of the graph: Triton's type ("" for one that Triton has not), dims with -1 where the size is open.

    ``dims`` is None when the file does not say how many there are; ``kind`` is ``tensor``, or what ONNX has beside
    tensors.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] | None
    kind: str = "tensor"


@dataclass(frozen=True)
class Graph:
    """Inputs that a request must give, the names of those with a default, and outputs."""

    inputs: dict[str, GraphTensor]
    defaults: frozenset[str]
    outputs: dict[str, GraphTensor]


def read_graph(path: Path, root: Path) -> Graph | None:
    """The graph of an ONNX file below ``root``; None when it cannot be read or is none."""
    try:
        handle = os.open(inside(path, root), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, Unreadable):
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return None
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data).graph()
    except (OSError, ValueError, IndexError):  # no message, or one of too many fields
        return None
    finally:
        os.close(handle)


class _Walk:
    """One walk through a file; every field of it counts against :data:`_MOST_FIELDS`."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._left = _MOST_FIELDS

    def graph(self) -> Graph | None:
        graphs = [(start, end) for number, start, end in self._fields(0, len(self._data)) if number == _GRAPH]
        if not graphs:
            return None
        found: dict[int, list[GraphTensor]] = {_INPUT: [], _OUTPUT: []}
        filled: set[str] = set()
        for number, start, end in self._fields(*graphs[-1]):
            if number in found:
                found[number].append(self._tensor(start, end))
            elif number == _INITIALIZER:
                filled |= {self._data[a:b].decode() for field, a, b in self._fields(start, end) if field == 8}
        if not found[_OUTPUT]:
            return None
        inputs = {row.name: row for row in found[_INPUT] if row.name not in filled}
        defaults = frozenset(row.name for row in found[_INPUT] if row.name in filled)
        return Graph(inputs, defaults, {row.name: row for row in found[_OUTPUT]})

    def _tensor(self, start: int, end: int) -> GraphTensor:
        """A ``ValueInfoProto``."""
        name, dtype, dims, other = "", "", None, "tensor"
        for number, a, b in self._fields(start, end):
            if number == 1:
                name = self._data[a:b].decode()
            elif number == 2:
                for kind, c, d in self._fields(a, b):
                    if kind == 1:  # a tensor; sequences and maps have no type that Triton knows
                        dtype, dims = self._type(c, d)
                    else:
                        other = _KINDS.get(kind, other)
        return GraphTensor(name, dtype, dims, other)

    def _type(self, start: int, end: int) -> tuple[str, tuple[int, ...] | None]:
        """Element type and shape of a ``TypeProto.Tensor``."""
        dtype, dims = "", None
        for number, a, b in self._fields(start, end):
            if number == 1:
                dtype = TYPES.get(self._varint(a)[0], "")
            elif number == 2:
                dims = tuple(self._dim(c, d) for field, c, d in self._fields(a, b) if field == 1)
        return dtype, dims

    def _dim(self, start: int, end: int) -> int:
        """One dimension; a name, or nothing, is an open size."""
        value = next((self._varint(a)[0] for number, a, _ in self._fields(start, end) if number == 1), -1)
        return value if 0 <= value < 1 << 63 else -1

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(number, first byte, byte after the last) of the fields of one message.

        Raises:
            ValueError, IndexError: the bytes are no message, or there are too many fields.
        """
        while start < end:
            self._left -= 1
            if self._left < 0:
                raise ValueError(f"more than {_MOST_FIELDS} fields")
            tag, start = self._varint(start)
            wire = tag & 7
            if wire == 2:
                length, start = self._varint(start)
                after = start + length
            elif wire in (1, 5):
                after = start + (8 if wire == 1 else 4)
            elif wire == 0:
                after = self._varint(start)[1]
            else:
                raise ValueError(f"wire type {wire}")
            if after > end:
                raise ValueError("a field ends behind its message")
            yield tag >> 3, start, after
            start = after

    def _varint(self, at: int) -> tuple[int, int]:
        """A number and the place after it."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise ValueError("a number of more than ten bytes")
