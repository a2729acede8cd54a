"""``tensorrt-rtx``: RTX engines of the plugin-free graph, compiled ahead of time without a GPU."""

from __future__ import annotations

from typing import Any, Literal

from trtforge.targets.base import NotRun, Target
from trtforge.targets.gates import AGREEMENT
from trtforge.targets.record import Cache, EngineRecord, Part


class RtxCache(Cache):
    """Linear caches, which the caller owns."""

    bytes_per_request: int


class RtxEngine(Part):
    """One RTX engine: its architecture, and the file with its bytes and hash."""

    architecture: str
    file: str
    bytes: int
    sha256: str


class Profile(Part):
    """Least, best and largest sizes of a kind of step: requests, and tokens of each."""

    name: str
    batch: list[int]
    row: list[int]


class RtxRecord(EngineRecord):
    """engine.json: an RTX engine for each architecture, and what loads them."""

    target: Literal["tensorrt-rtx"]
    limits: dict[str, Any]
    kv_cache: RtxCache
    dtype: str
    loads_in: str
    engines: list[RtxEngine]
    profiles: list[Profile]


_RTX = "an RTX engine runs on a GPU under TensorRT for RTX, which this pipeline has no runner for"

RTX = Target(
    name="tensorrt-rtx",
    folder="rtx",
    made_from="graph",
    graph_mode="native",
    runtime="rtx",
    needs_gpu=True,
    built_for="named-gpus",
    compiled=True,
    record=RtxRecord,
    layouts=(),
    head_multiple=2,
    # parity runs: on the float32 form of the graph, under gates of its own names
    left_out={
        "repository": NotRun("no backend of Triton loads RTX engines"),
        "smoke": NotRun(_RTX, ("smoke", *AGREEMENT, "engine_sanity")),
        "bench": NotRun(_RTX, ("failed_requests", "slo")),
    },
)
