"""Safetensors headers without loading a tensor: names, shapes, types and where the bytes lie.

Policy: a header is believed only when it accounts for every byte of its file. A length that runs
past the end, an offset out of range, an overlap, a hole, a size that does not match shape and type,
or bytes left over all mean a truncated or damaged file and raise ``TF-SRC-005``; a Git-LFS pointer
in a file's place is ``TF-SRC-004``, a missing shard ``TF-SRC-006``, an index at odds with the files
``TF-SRC-007``. Nothing here imports torch or numpy, so preflight, the graph builder, the planner and
the audit all read through this module.
"""

from __future__ import annotations

import json
import re
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file

#: bits of one element (the format's own names); sub-byte types pack along the last axis
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
#: the reference implementation's limit: a longer header is an attack or damage, never a model
MAX_HEADER_BYTES = 100_000_000
WEIGHTS_NAME = "model.safetensors"
#: in a folder whose weight files are headers and holes; nothing of their values may be believed
PARTIAL_MARK = "headers-only.json"
INDEX_NAME = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_STRUCT = {"F64": "d", "F32": "f", "F16": "e"}
_POINTER_MARKS = (b"version https://git-lfs.github.com/spec/", b"# xet version ")


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. ``offset`` counts from the start of ``file`` (not of its data section)."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def require_regular(path: Path) -> None:
    """Raise ``TF-SRC-032`` when ``path`` is a pipe, a socket or a device: opening one can wait for ever."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise ForgeError(
            "TF-SRC-032",
            f"{path.name} is {kind}, not a regular file",
            asked=str(path),
            why="A checkpoint is read at many places and more than once, which only a regular file allows.",
            remedies=[f"replace {path.name} by a copy of the file itself"],
        )


def is_pointer_file(path: Path) -> bool:
    """Whether ``path`` is a Git-LFS (or Xet) pointer: a small text that stands for a file kept elsewhere."""
    require_regular(path)
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(_POINTER_MARKS)


def refuse_pointer(path: Path) -> None:
    """Raise ``TF-SRC-004`` when ``path`` holds a pointer instead of its content."""
    if is_pointer_file(path):
        raise ForgeError(
            "TF-SRC-004",
            f"{path.name} is a Git-LFS pointer, not the file itself",
            asked=str(path),
            numbers={"bytes": path.stat().st_size},
            why="The repository was cloned without Git-LFS: each large file is a text that names it.",
            remedies=[
                f"run `git lfs install && git lfs pull` in {path.parent}",
                "download the checkpoint again, for example with source hf:org/name@revision",
            ],
        )


def _damaged(path: Path, reason: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-005",
        f"{path.name} is truncated or damaged: {reason}",
        asked=str(path),
        numbers=numbers,
        why="A safetensors header must account for every byte of its file; with this one no weight can be trusted.",
        remedies=[f"copy or download {path.name} again and compare its SHA-256 with the publisher's"],
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("the same key twice")
    return result


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def read_header(path: Path, name: str | None = None) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors and metadata of one file, in the order of their bytes.

    Args:
        path: the file.
        name: what :attr:`TensorInfo.file` shall say; default the file's own name.

    Raises:
        ForgeError: ``TF-SRC-004`` a pointer file, ``TF-SRC-005`` truncated or damaged, ``TF-SRC-032`` no regular file.
    """
    require_regular(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith((b"version ", b"# xet")):
            refuse_pointer(path)
        if len(head) < 8:
            raise _damaged(path, "shorter than the 8 bytes that give the header's length", bytes=size)
        length = int.from_bytes(head, "little")
        if length > MAX_HEADER_BYTES or 8 + length > size:
            raise _damaged(path, "its header runs past the end", header_bytes=length, bytes=size)
        raw = file.read(length)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON object ({error})", header_bytes=length, bytes=size) from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object", header_bytes=length, bytes=size)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its metadata is no map of strings", header_bytes=length)
    start = 8 + length
    tensors = {key: _entry(path, name or path.name, key, value, start, size) for key, value in header.items()}
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes, item[0])))
    position = start
    for key, info in ordered.items():
        if info.offset != position:
            kind = "overlaps the tensor before it" if info.offset < position else "leaves a hole before it"
            raise _damaged(path, f"{key} {kind}", offset=info.offset, expected_offset=position)
        position += info.nbytes
    if position != size:
        raise _damaged(path, "the tensors do not end where the file does", tensors_end=position, bytes=size)
    return ordered, metadata


def _entry(path: Path, file: str, key: str, value: Any, start: int, size: int) -> TensorInfo:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise _damaged(path, f"the entry of {key!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damaged(path, f"{key!r} has the unknown type {dtype!r}", known=", ".join(DTYPE_BITS))
    if not isinstance(shape, list) or not all(_is_count(length) for length in shape):
        raise _damaged(path, f"{key!r} has no valid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
        raise _damaged(path, f"{key!r} has no valid data_offsets")
    begin, end = offsets
    if begin > end or start + end > size:
        raise _damaged(path, f"{key} runs past the end", begin=start + begin, end=start + end, bytes=size)
    info = TensorInfo(file, dtype, tuple(shape), start + begin, end - begin)
    bits = info.elements * DTYPE_BITS[dtype]
    if bits != info.nbytes * 8:
        raise _damaged(path, f"{key} does not fill its range", needed_bits=bits, bytes=info.nbytes)
    return info


def plain_floats(dtype: str, raw: bytes) -> tuple[float, ...] | None:
    """The values of a small tensor's bytes; None for a type that is no plain float, or bytes that do not fill it."""
    if dtype not in ("F64", "F32", "F16", "BF16") or len(raw) * 8 % DTYPE_BITS[dtype]:
        return None
    if dtype == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        dtype, raw = "F32", bytes(wide)
    return struct.unpack(f"<{len(raw) * 8 // DTYPE_BITS[dtype]}{_STRUCT[dtype]}", raw)


def weight_files(directory: Path) -> list[str]:
    """Names of the weight files of a checkpoint directory, sorted; empty when it has none.

    The index decides when there is one; then ``model.safetensors``; then a complete set of shards by
    name; then a lone ``*.safetensors``.

    Raises:
        ForgeError: ``TF-SRC-006`` a shard is missing, ``TF-SRC-007`` the index is malformed or several
            files claim to be the model, ``TF-SRC-003`` the index names a path outside the directory.
    """
    if (directory / INDEX_NAME).is_file():
        return sorted(set(read_index(directory).values()))
    if (directory / WEIGHTS_NAME).is_file():
        return [WEIGHTS_NAME]
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    shards = [match for match in map(_SHARD_NAME.match, names) if match]
    if shards and len({(match["stem"], match["count"]) for match in shards}) == 1:
        count = int(shards[0]["count"])
        wanted = [f"{shards[0]['stem']}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        _require_files(directory, wanted)
        return wanted
    if len(names) > 1:
        raise ForgeError(
            "TF-SRC-007",
            f"{directory.name} holds several safetensors files and no index that says which are the model",
            asked=str(directory),
            numbers={"files": ", ".join(names[:8])},
            remedies=[f"add {INDEX_NAME}", f"keep one file and name it {WEIGHTS_NAME}"],
        )
    for name in names:
        require_regular(directory / name)
    return names


def read_index(directory: Path) -> dict[str, str]:
    """``{tensor: shard}`` of ``model.safetensors.index.json``, every shard present inside the directory."""
    path = directory / INDEX_NAME
    refuse_pointer(path)
    try:
        weight_map = read_json_file(path)["weight_map"]
        valid = isinstance(weight_map, dict) and weight_map and all(isinstance(v, str) for v in weight_map.values())
    except (OSError, ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise ForgeError(
            "TF-SRC-007",
            f"{INDEX_NAME} is no index: it must be JSON with a weight_map from tensor to file",
            asked=str(path),
            remedies=[f"copy or download {INDEX_NAME} again"],
        )
    for name in set(weight_map.values()):
        _refuse_escape(directory, name)
    _require_files(directory, sorted(set(weight_map.values())))
    return dict(weight_map)


def _refuse_escape(directory: Path, name: str) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name or name in {"", "."}:
        raise ForgeError(
            "TF-SRC-003",
            f"{INDEX_NAME} names {name!r}, a path that leaves the checkpoint's folder",
            asked=str(directory / INDEX_NAME),
            why="A checkpoint may only name its own files; anything else could read or publish foreign data.",
            remedies=["put the shard into the folder and name it without a path"],
        )


def _require_files(directory: Path, names: list[str]) -> None:
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ForgeError(
            "TF-SRC-006",
            f"{len(missing)} of {len(names)} weight files are missing: {', '.join(missing[:8])}",
            asked=str(directory),
            numbers={"missing": len(missing), "needed": len(names)},
            why="The checkpoint is sharded and each shard holds tensors that no other has.",
            remedies=[f"download {missing[0]} into {directory}", "download the whole checkpoint again"],
        )


def read_headers(directory: Path) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint directory, by name, checked against the index when there is one.

    Raises:
        ForgeError: as :func:`read_header` and :func:`weight_files`; ``TF-SRC-007`` when the index and the
            shards disagree; ``TF-SRC-028`` when the directory holds no safetensors weights.
    """
    files = weight_files(directory)
    if not files:
        raise ForgeError(
            "TF-SRC-028",
            f"{directory} holds no safetensors weights",
            asked=str(directory),
            remedies=["name a directory with model.safetensors (or its shards and index)"],
        )
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        header, _ = read_header(directory / file, file)
        twice = tensors.keys() & header.keys()
        if twice:
            raise _index_differs(directory, f"{len(twice)} tensors lie in two files", twice)
        tensors.update(header)
    if (directory / INDEX_NAME).is_file():
        index = read_index(directory)
        absent = [name for name, file in index.items() if name not in tensors or tensors[name].file != file]
        if absent:
            raise _index_differs(directory, f"the index names {len(absent)} tensors that are not in their file", absent)
        unnamed = tensors.keys() - index.keys()
        if unnamed:
            raise _index_differs(
                directory, f"the shards hold {len(unnamed)} tensors that the index does not name", unnamed
            )
    return tensors


def _index_differs(directory: Path, message: str, names: Iterable[str]) -> ForgeError:
    listed = sorted(names)
    return ForgeError(
        "TF-SRC-007",
        f"{message}: {', '.join(listed[:5])}{' …' if len(listed) > 5 else ''}",
        asked=str(directory / INDEX_NAME),
        numbers={"tensors": len(listed)},
        why="Index and shards come from different versions of the checkpoint, or a shard was replaced.",
        remedies=["download index and shards of one revision again"],
    )
