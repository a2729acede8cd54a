"""The largest bias on a checkpoint's keys: what tells a family with outlier keys from the values themselves.

Policy: a few kilobytes a layer are read where they lie, whatever the rest weighs. Biases of a type that is not a plain
float, or that hold no finite value, are unknown, not zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from quantize.intake.gguf_model import hf_name
from quantize.intake.gguf_parts import GgufFile
from trtforge.ground.safetensors_header import TensorInfo, plain_floats

_BIAS = ".self_attn.k_proj.bias"


def folder_key_bias(folder: Path, tensors: Mapping[str, TensorInfo]) -> float | None:
    """The largest magnitude among the key biases of a folder's ``tensors``; None where there are none to read."""

    def biases() -> Iterator[tuple[str, bytes]]:
        for name, info in tensors.items():
            if name.endswith(_BIAS):
                with (folder / info.file).open("rb") as file:
                    file.seek(info.offset)
                    yield info.dtype, file.read(info.nbytes)

    return _largest(biases())


def gguf_key_bias(file: GgufFile) -> float | None:
    """As :func:`folder_key_bias`, of a GGUF file; its plain types have the names that safetensors gives them."""
    return _largest(
        (tensor.type, file.bytes_of(tensor.offset, tensor.nbytes).tobytes())
        for name, tensor in file.header.tensors.items()
        if (hf_name(name) or "").endswith(_BIAS)
    )


def _largest(biases: Iterable[tuple[str, bytes]]) -> float | None:
    """Of types and raw bytes: the largest finite magnitude."""
    largest: float | None = None
    for dtype, raw in biases:
        values = plain_floats(dtype, raw)
        if values is None:
            return None
        finite = [abs(value) for value in values if math.isfinite(value)]
        if finite:
            largest = max(largest or 0.0, *finite)
    return largest
