"""What TensorRT-LLM's two targets share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.targets.base import NotRun
from trtforge.targets.gates import AGREEMENT, SPECULATION
from trtforge.targets.record import Cache, EngineRecord, Part


class BlockedCache(Cache):
    """Blocks of tokens that TensorRT-LLM hands out."""

    block_size: int


class Ranks(Part):
    """Ranks of the engine."""

    tp: int
    pp: int
    ep: int


class TrtllmRecord(EngineRecord):
    """engine.json of both: the stack that it is for, and whether there is a compiled engine."""

    limits: dict[str, Any]
    kv_cache: BlockedCache
    parallel: Ranks
    compiled: bool
    tensorrt_llm: str
    stack: str
    container: str | None


def left_to_tensorrt_llm(why: str) -> Mapping[str, NotRun]:
    """What both leave out, whose network is TensorRT-LLM's own and whose runtime the pipeline does not run."""
    return {
        "graph": NotRun("TensorRT-LLM makes its own network from the checkpoint"),
        "parity": NotRun(why, (*AGREEMENT, "engine_sanity")),
        "speculation": NotRun(why, tuple(SPECULATION)),
        "smoke": NotRun(why, ("smoke",)),
        "bench": NotRun(why, ("failed_requests", "slo")),
    }
