"""The time of a step: for every op the larger of arithmetic and memory time, plus launches and communication.

Roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", 2009,
https://doi.org/10.1145/1498765.1498785. Ops of a rank run one after another; nothing overlaps with communication,
so the sum is an upper bound where an engine overlaps them. Times are seconds, arrays [3, …] over the variants slow,
typical and fast, behind them the shape of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.planner.calibration import Calibration
from builder.planner.communication import all_to_all, link_between, point_to_point, ring_all_reduce
from builder.planner.hardware import Gpu
from builder.planner.speed.cost import Cost, OpClass, costs, message_bytes
from builder.planner.speed.efficiency import Efficiency, efficiency, link_efficiency
from builder.planner.speed.ops import Collective, Op, fused, ops_of_model, sharded
from builder.planner.speed.step import Step
from builder.planner.types import ParallelPlan, Precision
from trtforge.models.record import Model

Times = npt.NDArray[Any]


@dataclass(frozen=True)
class OpTime:
    """One op in a step: its share of the time and the roof that it meets.

    ``compute`` and ``memory`` are what either roof alone would take, ``launch`` what starting costs; all [3, …].
    """

    name: str
    op_class: str
    flops: Times
    bytes: Times
    compute: Times
    memory: Times
    launch: Times

    @property
    def total(self) -> Times:
        """Seconds [3, …]."""
        return np.maximum(self.compute, self.memory) + self.launch

    def bound(self) -> str:
        """The roof that the typical variant of a single step meets."""
        if self.op_class == "communication":
            return "communication"
        compute, memory, launch = (float(np.ravel(part[1])[0]) for part in (self.compute, self.memory, self.launch))
        if launch > max(compute, memory):
            return "launch"
        return "compute" if compute >= memory else "memory"


@dataclass(frozen=True)
class StepTime:
    """A step's time and what it is made of; ``total`` is the sum of the ops' times."""

    ops: tuple[OpTime, ...]
    total: Times = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", np.sum([op.total for op in self.ops], axis=0))

    def by_class(self) -> dict[str, Times]:
        """Seconds by class of op."""
        found: dict[str, Times] = {}
        for op in self.ops:
            found[op.op_class] = found.get(op.op_class, np.zeros_like(op.total)) + op.total
        return found


class Engine:
    """One replica of a model as the planner times it: the fused ops of a rank, on a GPU, over its links.

    Args:
        model: sizes; ``raw_ops`` of the written graph replace the ops that follow from them.
        network: what joins nodes; inside a node the GPU's own links do.
        calibration: measured over planned times on this GPU.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision,
        gpu: Gpu,
        parallel: ParallelPlan,
        *,
        network: str = "ib-ndr",
        raw_ops: Sequence[Op] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.model, self.precision, self.gpu, self.parallel = model, precision, gpu, parallel
        self.calibration = calibration
        self.tensor_link = link_between(gpu, parallel.tp, network) if parallel.tp > 1 else None
        self.stage_link = link_between(gpu, parallel.gpus, network) if parallel.pp > 1 else None
        raw = ops_of_model(model, precision) if raw_ops is None else list(raw_ops)
        self.ops = fused(sharded(raw, model, parallel))
        self._efficiencies: dict[OpClass, Efficiency] = {}

    def time(self, step: Step) -> StepTime:
        """The time of ``step`` from the first stage's embedding to the last stage's logits."""
        times: list[OpTime] = []
        for op in self.ops:
            if isinstance(op, Collective):
                times.append(self._collective(op, step))
            else:
                times.extend(self._op(cost) for cost in costs(op, step, self.precision, self.gpu))
        return StepTime(tuple(times))

    def _efficiency(self, op_class: OpClass) -> Efficiency:
        if op_class not in self._efficiencies:
            self._efficiencies[op_class] = efficiency(self.gpu.arch, op_class, self.calibration)
        return self._efficiencies[op_class]

    def _op(self, cost: Cost) -> OpTime:
        found = self._efficiency(cost.op_class)
        peak = self.gpu.flops(cost.compute)
        assert peak is not None
        shape = (3,) + (1,) * np.ndim(cost.flops)
        scale = found.scale.reshape(shape)
        return OpTime(
            cost.name,
            cost.op_class,
            cost.flops,
            cost.bytes,
            cost.flops / (peak * found.compute.reshape(shape)) * scale,
            cost.bytes / (self.gpu.bandwidth * found.memory.reshape(shape)) * scale,
            cost.launches * found.launch.reshape(shape) * scale,
        )

    def _collective(self, op: Collective, step: Step) -> OpTime:
        size = message_bytes(op, step, self.precision)
        joint = self.stage_link if op.kind == "point_to_point" else self.tensor_link
        assert joint is not None
        found = link_efficiency(joint.name, self.calibration)
        shape = (3,) + (1,) * np.ndim(size)
        scale = found.scale.reshape(shape) * op.count * (size > 0)
        bandwidth = joint.one_way * found.bandwidth.reshape(shape)
        # the formulas are linear in the message: the part that latency makes, and seconds a byte of bandwidth one
        start = _collective_time(op, 0.0, 1.0, joint.latency)
        seconds = start + size * _collective_time(op, 1.0, 1.0, 0.0) / bandwidth
        name = f"{op.name} {op.kind}"
        moved, nothing = size * op.count, np.zeros_like(size)
        launch = found.launch.reshape(shape) * scale
        return OpTime(name, "communication", nothing, moved, 0 * launch, seconds * scale, launch)


def _collective_time(op: Collective, size: float, bandwidth: float, latency: float) -> float:
    if op.kind == "all_reduce":
        return ring_all_reduce(op.ranks, size, bandwidth, latency)
    if op.kind == "all_to_all":
        return all_to_all(op.ranks, size, bandwidth, latency)
    return point_to_point(size, bandwidth, latency)
