"""INT4 weights from ModelOpt's packing into ONNX's.

ModelOpt stores [N/2, K] bytes: byte (i, k) holds row 2i in its low and row 2i+1 in its high nibble.
ONNX stores the elements of [N, K] in order, two a byte, the even one in the low nibble. Both hold
two's complement nibbles, so repacking moves bits and changes no value.

The result is ``packed.safetensors`` beside the checkpoint's files: written a band of rows at a time
(memory does not grow with the model), to a temporary name first, with a header that any reader of
safetensors understands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from builder.graphs.info import PACKED_FILE
from trtforge.ground.safetensors_header import TensorInfo

Bytes = npt.NDArray[np.uint8]
#: packed bytes handled at once
_BAND = 8 * 2**20


def repack_rows(packed_rows: Bytes) -> Bytes:
    """ModelOpt's bytes [R, K] (2R rows of weights) as ONNX's [2R, K/2]."""
    low, high = packed_rows & 0xF, packed_rows >> 4
    rows = np.stack([low, high], axis=1).reshape(-1, packed_rows.shape[1])
    result: Bytes = rows[:, 0::2] | (rows[:, 1::2] << 4)
    return result


def plan_packed(weights: Mapping[str, TensorInfo]) -> tuple[dict[str, TensorInfo], bytes]:
    """Where each weight will lie in ``packed.safetensors``, and the bytes of its header.

    Args:
        weights: ModelOpt's tensors [N/2, K] by name.
    """
    header: dict[str, object] = {
        "__metadata__": {"format": "onnx-int4", "layout": "[N, K/2]: even input in the low nibble, two's complement"}
    }
    begin, places = 0, {}
    for name, info in sorted(weights.items()):
        rows, columns = info.shape
        shape = (2 * rows, columns // 2)
        header[name] = {"dtype": "U8", "shape": list(shape), "data_offsets": [begin, begin + info.nbytes]}
        places[name] = TensorInfo(PACKED_FILE, "U8", shape, begin, info.nbytes)
        begin += info.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    placed = {name: TensorInfo(p.file, p.dtype, p.shape, p.offset + len(start), p.nbytes) for name, p in places.items()}
    return placed, start


def write_packed(checkpoint: Path, weights: Mapping[str, TensorInfo], header: bytes, out: Path) -> None:
    """Write ``packed.safetensors`` into ``out`` from the weights in ``checkpoint`` (see :func:`plan_packed`)."""
    temporary = out / f"{PACKED_FILE}.partial"
    with temporary.open("wb") as target:
        target.write(header)
        for _, info in sorted(weights.items()):
            rows, columns = info.shape
            band = max(1, _BAND // columns)
            with (checkpoint / info.file).open("rb") as source:
                source.seek(info.offset)
                for first in range(0, rows, band):
                    count = min(band, rows - first)
                    block = np.frombuffer(source.read(count * columns), dtype=np.uint8).reshape(count, columns)
                    target.write(repack_rows(block).tobytes())
    temporary.replace(out / PACKED_FILE)
