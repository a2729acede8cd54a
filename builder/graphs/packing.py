"""Weights from the checkpoint's packing into ONNX's, as their format says (:class:`trtforge.formats.base.Repacking`).

The result is ``packed.safetensors`` beside the checkpoint's files: written a band of rows at a time
(memory does not grow with the model), to a temporary name first, with a header that any reader of
safetensors understands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from builder.graphs.info import PACKED_FILE
from trtforge.formats.base import Repacking
from trtforge.ground.safetensors_header import TensorInfo

#: packed bytes handled at once
_BAND = 8 * 2**20


def plan_packed(weights: Mapping[str, tuple[TensorInfo, Repacking]]) -> tuple[dict[str, TensorInfo], bytes]:
    """Where each weight will lie in ``packed.safetensors``, and the bytes of its header.

    Args:
        weights: the checkpoint's tensors and how each is laid out anew, by name.
    """
    layouts = {repacking.kind: repacking.layout for _, repacking in weights.values()}
    header: dict[str, object] = {
        "__metadata__": {"format": ", ".join(sorted(layouts)), "layout": "; ".join(layouts[k] for k in sorted(layouts))}
    }
    begin, places = 0, {}
    for name, (info, repacking) in sorted(weights.items(), key=lambda item: item[0]):
        shape = repacking.shape(info.shape)
        header[name] = {"dtype": "U8", "shape": list(shape), "data_offsets": [begin, begin + info.nbytes]}
        places[name] = TensorInfo(PACKED_FILE, "U8", shape, begin, info.nbytes)
        begin += info.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    placed = {name: TensorInfo(p.file, p.dtype, p.shape, p.offset + len(start), p.nbytes) for name, p in places.items()}
    return placed, start


def write_packed(
    checkpoint: Path, weights: Mapping[str, tuple[TensorInfo, Repacking]], header: bytes, out: Path
) -> None:
    """Write ``packed.safetensors`` into ``out`` from the weights in ``checkpoint`` (see :func:`plan_packed`)."""
    temporary = out / f"{PACKED_FILE}.partial"
    with temporary.open("wb") as target:
        target.write(header)
        for _, (info, repacking) in sorted(weights.items(), key=lambda item: item[0]):
            rows, columns = info.shape
            band = max(1, _BAND // columns)
            with (checkpoint / info.file).open("rb") as source:
                source.seek(info.offset)
                for first in range(0, rows, band):
                    count = min(band, rows - first)
                    block = np.frombuffer(source.read(count * columns), dtype=np.uint8).reshape(count, columns)
                    target.write(repacking.rows(block).tobytes())
    temporary.replace(out / PACKED_FILE)
