"""``tensorrt-rtx``: RTX engines of the plugin-free graph, compiled ahead of time without a GPU."""

from __future__ import annotations

from trtforge.targets.base import NotRun, Target
from trtforge.targets.gates import AGREEMENT

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
    layouts=(),
    head_multiple=2,
    # parity runs: on the float32 form of the graph, under gates of its own names
    left_out={
        "repository": NotRun("no backend of Triton loads RTX engines"),
        "smoke": NotRun(_RTX, ("smoke", *AGREEMENT, "engine_sanity")),
        "bench": NotRun(_RTX, ("failed_requests", "slo")),
    },
)
