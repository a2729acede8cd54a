"""``tensorrt``: a TensorRT plan of the plugin graph, built on the GPU that it serves, run by trtforge's own runtime."""

from __future__ import annotations

from trtforge.targets.base import Target

TENSORRT = Target(
    name="tensorrt",
    folder="tensorrt",
    made_from="graph",
    graph_mode="paged",
    runtime="trtforge",
    needs_gpu=True,
    built_for="this-gpu",
    compiled=True,
    cuda_plugins=True,
    layouts=("native",),
    head_multiple=8,
)
