"""``torch``: the plugin graph packed for the processor or a CUDA device, run by trtforge's own runtime anywhere."""

from __future__ import annotations

from typing import Literal

from trtforge.targets.base import Target
from trtforge.targets.record import Count, Part, ServedRecord


class Requirements(Part):
    """Sizes of a linear that a kernel takes."""

    outputs_multiple_of: Count = 1
    group_multiple_of: Count = 1


class Choice(Part):
    """A row of the kernel table; see the head of ``builder/targets/torch/kernels.yaml`` for the fields."""

    stored: str
    capability: list[str]
    kernel: str
    native: bool
    executed: str
    inputs: str | None = None
    rounds: str | None = None
    requires: Requirements = Requirements()
    measured: str | None = None

    def fits(self, stored: str, capability: str, shape: tuple[int, int], group: int | None) -> bool:
        """Whether the row serves a linear [N, K] stored like that on that processor."""
        machine = capability in self.capability or ("any" in self.capability and not capability.startswith("cuda"))
        outputs, groups = self.requires.outputs_multiple_of, self.requires.group_multiple_of
        return self.stored == stored and machine and shape[0] % outputs == 0 and (group or 0) % groups == 0

    def executed_of(self, rounded: bool) -> str:
        """What runs, in words, for a linear whose inputs are rounded or not."""
        return f"{self.executed}, {self.inputs}" if rounded and self.inputs else self.executed


class TorchRecord(ServedRecord):
    """engine.json: also the rows of the kernel table that the linears may need."""

    target: Literal["torch"]
    host_abi: int | None = None
    kernel_choices: list[Choice]


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
