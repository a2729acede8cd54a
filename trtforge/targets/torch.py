"""``torch``: the plugin graph packed for the processor or a CUDA device, run by trtforge's own runtime anywhere."""

from __future__ import annotations

from trtforge.targets.base import Target

TORCH = Target(
    name="torch",
    folder="torch",
    made_from="graph",
    graph_mode="paged",
    runtime="trtforge",
    needs_gpu=False,
    built_for="any",
    compiled=False,
    layouts=("native",),
    head_multiple=2,
)
