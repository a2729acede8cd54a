"""Are the weights that the kernels multiply those that are stored, and that were evaluated?

A kernel's own form is read back (:meth:`~runtime.executors.linears.LinearKernel.weights`) and held against the
stored weight, value by value. What differs was rounded at load. The measure is the difference over the largest
magnitude of the linear's own weights, so that a small weight that float16 rounds does not look like a lost one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.executors.linears import PackedLinear
from runtime.executors.weights import Scratch
from trtforge.ground.json_file import PlainRecord

#: largest difference that a gate lets pass: the rounding error of float16
TOLERANCE = 2.0**-11


@dataclass
class WeightCheck(PlainRecord):
    """Attributes:
    weights: how many were compared.
    changed: of them, how many are not the stored value.
    largest: the largest difference, over the largest magnitude of its linear.
    linears: ``{name: {changed, largest, kernel}}`` of the linears in which any differs.
    """

    weights: int = 0
    changed: int = 0
    largest: float = 0.0
    linears: dict[str, dict[str, Any]] = field(default_factory=dict)

    def with_draft(self, draft: WeightCheck) -> WeightCheck:
        """This check and that of the model that drafts, whose linears are named as its."""
        return WeightCheck(
            self.weights + draft.weights,
            self.changed + draft.changed,
            max(self.largest, draft.largest),
            {**self.linears, **{f"draft: {name}": row for name, row in draft.linears.items()}},
        )


def check_weights(linears: Sequence[PackedLinear]) -> WeightCheck:
    """Read every packed linear back; a few hundred megabytes of memory for the largest, no activations."""
    result, scratch = WeightCheck(), Scratch()
    for packed in linears:
        for source in packed.sources:
            source.restore()
        stored, first = scratch.codes(packed.sources), 0
        if packed.power != 1.0:
            stored.mul_(packed.power)
        held = packed.kernel.weights()
        for source in packed.sources:
            rows = slice(first, first + source.shape[0])
            first += source.shape[0]
            _compare(result, source.name, packed.kernel.name, stored[rows], held[rows])
            source.release()
    return result


def _compare(result: WeightCheck, name: str, kernel: str, stored: torch.Tensor, held: torch.Tensor) -> None:
    changed = int((held != stored).sum())
    result.weights += stored.numel()
    if not changed:
        return
    scale = float(torch.linalg.vector_norm(stored, float("inf")))
    difference = float(torch.linalg.vector_norm(held - stored, float("inf")))
    # what is not finite on one side only, or stands where all weights are zero, differs by all there is
    largest = difference / scale if scale > 0 and difference == difference else float("inf")
    result.changed += changed
    result.largest = max(result.largest, largest)
    result.linears[name] = {"changed": changed, "largest": largest, "kernel": kernel}
