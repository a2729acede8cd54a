"""Element types of the paged KV pool: the model's float types, and those of the cache modes that engines here read."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from trtforge.formats.table import carried_kv


@dataclass(frozen=True)
class Pool:
    """Attributes:
    dtype: torch's name of an element.
    onnx: ONNX's.
    scaled: keys and values have a scale each; without calibration it is one.
    """

    dtype: str
    onnx: str
    scaled: bool = False


@functools.cache
def pools() -> Mapping[str, Pool]:
    """A pool's name in graph.json and engine.json -> what it holds."""
    floats = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    scaled = {
        str(mode.pool): Pool(str(mode.dtype), str(mode.dtype).replace("_", "").upper(), scaled=True)
        for mode in carried_kv().values()
    }
    return {name: Pool(name, onnx) for name, onnx in floats.items()} | scaled


def calibrated_pool(algorithm: str | None) -> str:
    """The pool of a checkpoint with calibrated scales: its algorithm's, or the first there is where it names none."""
    mode = carried_kv().get(algorithm or "")
    return str(mode.pool) if mode is not None else next(name for name, pool in pools().items() if pool.scaled)
