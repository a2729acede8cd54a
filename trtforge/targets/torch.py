"""``torch``: the plugin graph packed for the processor or a CUDA device, run by trtforge's own runtime anywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trtforge.targets.base import Target
from trtforge.targets.record import Count, Part, ServedRecord


class Linear(Part):
    """A linear as it is stored; ``shape`` is [outputs, inputs]."""

    name: str
    shape: Annotated[list[Count], Field(min_length=2, max_length=2)]
    stored: str
    group_size: int | None


class TorchRecord(ServedRecord):
    """engine.json: the linears, and the rows of the kernel table that they may need."""

    target: Literal["torch"]
    linears: list[Linear]
    kernel_choices: list[dict[str, Any]]


TORCH = Target(
    name="torch",
    folder="torch",
    made_from="graph",
    graph_mode="paged",
    runtime="trtforge",
    needs_gpu=False,
    built_for="any",
    compiled=False,
    record=TorchRecord,
    layouts=("native",),
    head_multiple=8,
)
