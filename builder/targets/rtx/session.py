"""Logits of a float32 graph in ONNX Runtime: what an RTX engine's graph computes, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from builder.graphs.info import GRAPH_FILE, GraphInfo


class Float32Session:
    """The graph that :func:`builder.targets.rtx.float32.emit_float32` wrote.

    Args:
        directory: where it was written; its weights are mapped from there.
        threads: of ONNX Runtime; 0: as many as cores.
    """

    def __init__(self, directory: Path, *, threads: int = 0) -> None:
        import onnxruntime

        self._info = GraphInfo.read(directory)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # it warns of every cache that it copies
        self._session = onnxruntime.InferenceSession(
            str(directory / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
        )
        self._caches = [value.name for value in self._session.get_inputs() if "_cache_" in value.name]

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Teacher-forced logits float32 [S, V] of a prompt of S tokens, prefilled at once."""
        length = len(tokens)
        row = np.arange(length, dtype=np.int64)
        cache = np.zeros((1, self._info.num_kv_heads, length, self._info.head_size), np.float32)
        feeds = {
            "input_ids": np.asarray(tokens, dtype=np.int64)[None],
            "positions": row[None],
            "write_indices": np.zeros(1, np.int64),
            "logit_indices": row,
            **dict.fromkeys(self._caches, cache),
        }
        (result,) = self._session.run(["logits"], feeds)
        return result
