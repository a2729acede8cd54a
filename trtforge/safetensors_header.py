"""Headers of safetensors checkpoints: names, types, shapes and byte ranges, never weights.

Policy: a header is trusted by nobody. Every range is checked against the file it points into, ranges
may not overlap, and the size of a tensor must agree with its shape and type; a pointer file of Git
LFS, a truncated file, a missing shard and a malformed header each get their own error. Reading the
headers of a sharded 70B checkpoint costs a few megabytes, whatever the weights weigh.

The format: 8 bytes little-endian header length, JSON, data
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.errors import ForgeError

#: bits of one element, by safetensors' name of the type
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I8": 8,
    "U8": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
#: the reference implementation refuses longer headers as well
MAX_HEADER_BYTES = 100 * 2**20
_LFS_PREFIX = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
        file: name of the file, relative to the checkpoint's directory.
        dtype: safetensors' name of the element type, such as ``BF16``.
        shape: dimensions, outermost first.
        offset: first byte, counted from the start of the file.
        nbytes: length in bytes.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)


def _broken(path: Path, why: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-090",
        f"{path.name} is no readable safetensors file: {why}",
        asked=str(path),
        numbers=numbers,
        why="Its header and its data do not belong together; the file was cut short, overwritten or is another format.",
        remedies=["Fetch the file again and compare its SHA-256 with the publisher's", "Export the checkpoint again"],
    )


def read_file_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors and ``__metadata__`` of one safetensors file.

    Raises:
        ForgeError: ``TF-SRC-089`` a Git LFS pointer file, ``TF-SRC-090`` anything else that is wrong.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if _LFS_PREFIX.startswith(start) and start:
                raise ForgeError(
                    "TF-SRC-089",
                    f"{path.name} is a Git LFS pointer, not weights",
                    asked=str(path),
                    numbers={"bytes": size},
                    why="The repository was cloned without its large files.",
                    remedies=["Run `git lfs pull` in the checkpoint's repository", "Download the file itself"],
                )
            if len(start) < 8:
                raise _broken(path, "it is shorter than a header", bytes=size)
            length = int.from_bytes(start, "little")
            if length > MAX_HEADER_BYTES or 8 + length > size:
                raise _broken(path, "its header is longer than the file", header_bytes=length, file_bytes=size)
            text = file.read(length)
    except OSError as error:
        raise _broken(path, str(error.strerror or error)) from error
    try:
        header = json.loads(text)
    except ValueError as error:
        raise _broken(path, "its header is no JSON", header_bytes=length) from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is no JSON object", header_bytes=length)
    metadata = header.pop("__metadata__", None) or {}
    tensors = {name: _tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    _refuse_overlap(path, tensors)
    return tensors, dict(metadata)


def _tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, begin, end)
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(path, f"the entry of {name} is malformed") from error
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers) or end < begin:
        raise _broken(path, f"the entry of {name} has impossible numbers", shape=list(shape), data_offsets=[begin, end])
    if dtype not in DTYPE_BITS:
        raise _broken(path, f"{name} has the unknown type {dtype!r}", known=sorted(DTYPE_BITS))
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if (end - begin) * 8 != bits:
        raise _broken(path, f"{name} has {end - begin} bytes, its shape needs {bits / 8:g}", shape=list(shape), dtype=dtype)
    if data_start + end > size:
        raise _broken(path, f"{name} ends past the end of the file", ends=data_start + end, file_bytes=size)
    return TensorInfo(path.name, dtype, shape, data_start + begin, end - begin)


def _refuse_overlap(path: Path, tensors: dict[str, TensorInfo]) -> None:
    ordered = sorted((info.offset, info.offset + info.nbytes, name) for name, info in tensors.items() if info.nbytes)
    for (_, end, first), (begin, _, second) in zip(ordered, ordered[1:], strict=False):
        if begin < end:
            raise _broken(path, f"{first} and {second} overlap", ends=end, begins=begin)


def shard_files(directory: Path) -> list[str]:
    """Names of the safetensors files that make up the checkpoint, sorted.

    Reads ``model.safetensors.index.json`` when there is one; otherwise ``model.safetensors``.

    Raises:
        ForgeError: ``TF-SRC-091`` no weights, ``TF-SRC-092`` a shard of the index is missing.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return sorted(set(_weight_map(index).values()))
    if (directory / "model.safetensors").is_file():
        return ["model.safetensors"]
    raise ForgeError(
        "TF-SRC-091",
        "The directory holds no safetensors weights",
        asked=str(directory),
        why="Neither model.safetensors nor model.safetensors.index.json is there.",
        remedies=["Point at the directory that holds the checkpoint", "Convert the weights to safetensors"],
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(index, "it has no readable weight_map") from error
    outside = [name for name in files if not isinstance(name, str) or Path(name).name != name]
    if outside:
        raise _broken(index, "it names files outside the directory", files=outside)
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise ForgeError(
            "TF-SRC-092",
            f"{len(missing)} of {len(files)} weight files are missing",
            asked=str(index),
            numbers={"missing": missing[:16], "files": len(files)},
            why="The index lists files that the directory does not hold.",
            remedies=["Fetch the missing files", "Remove the index if the checkpoint is one file"],
        )
    return weight_map


def read_headers(directory: Path) -> dict[str, TensorInfo]:
    """Every tensor of the checkpoint in ``directory``, sorted by name.

    Raises:
        ForgeError: see :func:`read_file_header` and :func:`shard_files`; ``TF-SRC-093`` when index and
            shards disagree about what lies where.
    """
    directory = Path(directory)
    tensors: dict[str, TensorInfo] = {}
    for name in shard_files(directory):
        for tensor, info in read_file_header(directory / name)[0].items():
            if tensor in tensors:
                raise _disagree(directory, f"{tensor} lies in {tensors[tensor].file} and in {info.file}")
            tensors[tensor] = info
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        for tensor, file in _weight_map(index).items():
            if tensor not in tensors or tensors[tensor].file != file:
                raise _disagree(directory, f"the index expects {tensor} in {file}, which does not hold it")
    return dict(sorted(tensors.items()))


def _disagree(directory: Path, what: str) -> ForgeError:
    return ForgeError(
        "TF-SRC-093",
        f"The index and the weight files disagree: {what}",
        asked=str(directory),
        why="Files of two exports were mixed, or a shard is of another revision.",
        remedies=["Fetch or export the whole checkpoint again into an empty directory"],
    )
