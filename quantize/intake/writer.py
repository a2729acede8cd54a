"""Writes safetensors as a stream: one tensor's piece in memory at a time, hashed on the way out.

Policy: the same tensors give the same bytes. Tensors follow the order given, the header is compact JSON padded
to 8 bytes with spaces, and there is no metadata but ``format: pt`` (what transformers insists on). A float that
is finite in the source and infinite in the target type is an error (``TF-SRC-029``), never a silent infinity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import DTYPE_BITS

#: a file's tensors end here at the latest, unless one tensor alone is larger
MAX_SHARD_BYTES = 5_000_000_000
PIECE_ELEMENTS = 1 << 22
FLOATS: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
TARGETS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to write: ``pieces`` yields its bytes, in order, when the writer gets to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[npt.NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        count = DTYPE_BITS[self.dtype]
        for size in self.shape:
            count *= size
        return count // 8


def convert(values: npt.NDArray[Any], source: str, target: str, name: str) -> npt.NDArray[Any]:
    """``values`` of the safetensors type ``source`` as ``target`` (BF16 travels as uint16 bits), nearest even.

    Raises:
        ForgeError: ``TF-SRC-029`` when a finite value does not fit into ``target``.
    """
    if source == target:
        return values
    wide = (values.astype(np.uint32) << 16).view(np.float32) if source == "BF16" else values
    with np.errstate(over="ignore", invalid="ignore"):
        if target == "F16":
            result: npt.NDArray[Any] = wide.astype(np.float16)
            infinite = np.isinf(result)
        else:
            single = np.ascontiguousarray(wide, dtype=np.float32)
            infinite = np.isinf(single)
            result = single
            if target == "BF16":
                bits = single.view(np.uint32)
                rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
                # rounding must not carry a NaN's payload into infinity
                result = np.where(np.isnan(single), (bits >> 16).astype(np.uint16) | np.uint16(0x40), rounded)
                infinite = (result & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    if infinite.any() and (lost := int(np.count_nonzero(infinite & np.isfinite(wide)))):
        largest = float(np.abs(wide[np.isfinite(wide)]).max())
        raise ForgeError(
            "TF-SRC-029",
            f"{name} holds values beyond the range of {target}",
            asked=f"{source} as {target}",
            numbers={"values": lost, "largest": largest},
            why="They would become infinite and the model would answer nonsense.",
            remedies=["set model.dtype: bfloat16, which has the range of float32", "set model.dtype: float32"],
        )
    return result


def converted_pieces(values: npt.NDArray[Any], source: str, target: str, name: str) -> Iterator[npt.NDArray[Any]]:
    """``values`` (flat) converted piece by piece."""
    for start in range(0, values.size, PIECE_ELEMENTS):
        yield convert(np.asarray(values[start : start + PIECE_ELEMENTS]), source, target, name)


def write_safetensors(
    path: Path, plans: Sequence[TensorPlan], on_bytes: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Write ``plans`` to ``path``; returns (size in bytes, SHA-256)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for plan in plans:
        header[plan.name] = {
            "dtype": plan.dtype,
            "shape": list(plan.shape),
            "data_offsets": [offset, offset + plan.nbytes],
        }
        offset += plan.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        head = len(text).to_bytes(8, "little") + text
        digest.update(head)
        file.write(head)
        for plan in plans:
            written = 0
            for piece in plan.pieces():
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)
                written += data.nbytes
                if on_bytes is not None:
                    on_bytes(data.nbytes)
            if written != plan.nbytes:
                raise AssertionError(f"{plan.name}: {written} bytes instead of {plan.nbytes}")
    return len(head) + offset, digest.hexdigest()


def plan_shards(plans: Sequence[TensorPlan], limit: int = MAX_SHARD_BYTES) -> dict[str, list[TensorPlan]]:
    """File names and their tensors: one ``model.safetensors``, or numbered shards when ``limit`` is passed."""
    groups: list[list[TensorPlan]] = [[]]
    size = 0
    for plan in plans:
        if groups[-1] and size + plan.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(plan)
        size += plan.nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def index_text(files: dict[str, list[TensorPlan]]) -> str:
    """``model.safetensors.index.json`` of sharded ``files``."""
    weight_map = {plan.name: file for file, plans in files.items() for plan in plans}
    total = sum(plan.nbytes for plans in files.values() for plan in plans)
    value = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(value, indent=2) + "\n"
