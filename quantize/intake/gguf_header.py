"""GGUF metadata and tensor table, read in milliseconds and checked against the file's size.

Policy: the ``gguf`` package's reader turns every token of a vocabulary into numpy arrays, which takes seconds;
preflight has less than that. This reader follows the specification, checks every length before it is used
(a damaged or hostile file ends in ``TF-SRC-014``, not in memory) and gives plain Python values. A file inside a
wheel is read through a callback that yields just the first megabytes.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError

MAGIC = b"GGUF"
#: tensor type number → (name, elements in a block, bytes of a block); the numbers of ggml.h
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 1 << 16
#: bytes of a header: vocabularies and merges of the largest models take some 20 MB
_MAX_HEADER = 128 << 20
#: elements of an array, and values and tensors of a file; the largest vocabularies have 300,000
_MAX_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the table. ``shape`` is in the usual order (rows first); ``offset`` counts from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Everything before the tensor data."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    size: int

    def get(self, key: str, kind: type, default: Any = None, *, items: type | None = None) -> Any:
        """The value of ``key``, which must be a ``kind`` (of ``items``, for a list), or ``default`` when it is absent.

        Raises:
            ForgeError: ``TF-SRC-014`` when the file has a value of another type there.
        """
        value = self.metadata.get(key)
        if value is None:
            return default
        good = isinstance(value, (int, float) if kind is float else kind)
        good = good and (kind is bool or not isinstance(value, bool))
        if good and items is not None:
            good = all(isinstance(item, items) and not isinstance(item, bool) for item in value)
        if not good:
            raise _damaged("the GGUF file", f"the value of {key} has the wrong type", found=type(value).__name__)
        return value


class _NeedMore(Exception):
    """The buffer ends before the header does, the file does not."""


def _damaged(name: str, reason: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-014",
        f"{name} is no intact GGUF file: {reason}",
        asked=name,
        numbers=numbers,
        remedies=[
            "download the file again and compare its SHA-256 with the publisher's",
            "set model.sha256 to catch it at once",
        ],
    )


class _Cursor:
    def __init__(self, data: bytes, size: int, name: str) -> None:
        self.data, self.size, self.name, self.position = data, size, name, 0

    def take(self, count: int) -> int:
        """Step over ``count`` bytes that exist; returns where they start."""
        start = self.position
        if start + count > self.size:
            raise _damaged(self.name, "it ends inside its header", bytes=self.size, needed=start + count)
        if start + count > len(self.data):
            raise _NeedMore
        self.position = start + count
        return start

    def scalar(self, code: str) -> Any:
        layout = "<" + code
        return struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout)))[0]

    def string(self, limit: int | None = None) -> str:
        length = self.scalar("Q")
        if limit is not None and length > limit:
            raise _damaged(self.name, "a name is absurdly long", length=length)
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if depth > 2:
                raise _damaged(self.name, "arrays are nested too deeply")
            if count * (1 if inner in _SCALARS else 8) > self.size:  # a string and an array take at least 8 bytes each
                raise _damaged(self.name, "an array is longer than the file", length=count, bytes=self.size)
            if count > _MAX_ELEMENTS:
                raise _damaged(self.name, "an array is absurdly long", length=count, at_most=_MAX_ELEMENTS)
            if inner in _SCALARS:
                layout = f"<{count}{_SCALARS[inner]}"
                return list(struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout))))
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise _damaged(self.name, f"a value has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])


def read_gguf(path: Path) -> GgufHeader:
    """Header of a GGUF file; ``TF-SRC-014`` when it is damaged or truncated, ``TF-SRC-004`` when it is a pointer."""
    from trtforge.ground.safetensors_header import refuse_pointer

    refuse_pointer(path)
    with path.open("rb") as file:
        return read_gguf_stream(file.read, path.stat().st_size, path.name)


def read_gguf_stream(read: Callable[[int], bytes], size: int, name: str) -> GgufHeader:
    """Header of a GGUF file of ``size`` bytes whose bytes ``read(count)`` delivers from the start."""
    data = b""
    wanted = min(size, 1 << 16)
    while True:
        while len(data) < wanted:
            piece = read(wanted - len(data))
            if not piece:
                raise _damaged(name, "it ends before its stated size", bytes=len(data), stated=size)
            data += piece
        try:
            return _parse(_Cursor(data, size, name))
        except _NeedMore:
            if len(data) >= _MAX_HEADER:
                raise _damaged(name, "its header does not end", bytes=size, read=len(data)) from None
            wanted = min(size, max(4 << 20, 2 * len(data)))


def _parse(cursor: _Cursor) -> GgufHeader:
    name = cursor.name
    start = cursor.take(4)
    magic = cursor.data[start : start + 4]
    if magic != MAGIC:
        raise _damaged(name, f"it begins with {magic!r}, not {MAGIC!r}", bytes=cursor.size)
    version = cursor.scalar("I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        reason = "it is big-endian" if swapped in (2, 3) else f"version {version} is not 2 or 3"
        raise _damaged(name, reason, version=version)
    tensor_count, value_count = cursor.scalar("Q"), cursor.scalar("Q")
    if tensor_count * 24 > cursor.size or value_count * 13 > cursor.size or tensor_count + value_count > _MAX_ELEMENTS:
        raise _damaged(name, "its counts exceed its size", tensors=tensor_count, values=value_count, bytes=cursor.size)
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string(_MAX_NAME)
        if key in metadata:
            raise _damaged(name, f"the key {key} is there twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise _damaged(name, f"its alignment {alignment!r} is no multiple of 8")
    table = [_tensor_row(cursor) for _ in range(tensor_count)]
    begin = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for key, kind, shape, offset in table:
        if key in tensors:
            raise _damaged(name, f"the tensor {key} is there twice")
        tensors[key] = _place(cursor, key, kind, shape, begin + offset)
    _refuse_overlap(name, tensors)
    return GgufHeader(version, metadata, tensors, cursor.size)


def _tensor_row(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    key = cursor.string(_MAX_NAME)
    dimensions = cursor.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise _damaged(cursor.name, f"{key} has {dimensions} dimensions")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(dimensions)]))
    return key, cursor.scalar("I"), shape, cursor.scalar("Q")


def _place(cursor: _Cursor, key: str, kind: int, shape: tuple[int, ...], offset: int) -> GgufTensor:
    if kind not in TENSOR_TYPES:
        raise ForgeError(
            "TF-SRC-015",
            f"{cursor.name}: the tensor {key} has a type (number {kind}) that cannot be converted",
            asked=cursor.name,
            numbers={"supported": [row[0] for row in TENSOR_TYPES.values()]},
            remedies=["use a GGUF in F16, BF16, Q8_0 or one of the common quantizations"],
        )
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
    row = shape[-1] if shape else 1
    if row % block:
        raise _damaged(cursor.name, f"a row of {key} is no whole number of {type_name} blocks", row=row, block=block)
    nbytes = elements // block * block_bytes
    if offset + nbytes > cursor.size:
        raise _damaged(
            cursor.name, f"it is truncated: {key} runs past the end", bytes=cursor.size, needed=offset + nbytes
        )
    return GgufTensor(key, type_name, shape, offset, nbytes)


def _refuse_overlap(name: str, tensors: dict[str, GgufTensor]) -> None:
    position, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda item: (item.offset, item.nbytes)):
        if tensor.offset < position:
            raise _damaged(name, f"the tensors {before} and {tensor.name} overlap", offset=tensor.offset)
        position, before = tensor.offset + tensor.nbytes, tensor.name
