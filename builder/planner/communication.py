"""What communication between GPUs costs: collectives by formula, links by topology.

Policy: latency and bandwidth of one link decide (the alpha-beta model of Thakur et al. 2005,
https://doi.org/10.1177/1094342005051521, with the traffic factors of nccl-tests,
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). NVLink's data-sheet bandwidth counts both
directions; a collective uses one, so :attr:`builder.planner.hardware.Link.one_way` is what plans use. The figures
are floors: no kernel, no protocol overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.planner.hardware import Gpu, Link, link, load_hardware
from builder.planner.types import ParallelPlan
from trtforge.models.record import Model


def ring_all_reduce(ranks: int, size: float, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce: 2 (N - 1) latency + 2 (N - 1) / N x size / bandwidth; 0 for one rank.

    Args:
        size: bytes of the message on every rank.
        bandwidth: bytes a second of a link; latency: seconds a message.
    """
    if ranks <= 1:
        return 0.0
    return 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * size / bandwidth


def point_to_point(size: float, bandwidth: float, latency: float) -> float:
    """Seconds of one message: latency + size / bandwidth."""
    return latency + size / bandwidth


def all_to_all(ranks: int, size: float, bandwidth: float, latency: float) -> float:
    """Seconds of an all-to-all: (N - 1) (latency + size / N / bandwidth); 0 for one rank.

    Args:
        size: bytes that a rank holds before the exchange, its own share included.
    """
    if ranks <= 1:
        return 0.0
    return (ranks - 1) * (latency + size / ranks / bandwidth)


def link_between(gpu: Gpu, ranks: int, network: str = "ib-ndr") -> Link:
    """The slowest link in a group of ``ranks`` neighbours: NVLink in its domain, PCIe in the node, else the network.

    Raises:
        ForgeError: ``TF-PLN-002`` no such network.
    """
    if gpu.nvlink_gbs and ranks <= gpu.nvlink_domain:
        rows = [row for row in load_hardware().links if row.name.startswith("nvlink")]
        return next(row for row in rows if row.bandwidth_gbs == gpu.nvlink_gbs)
    if ranks <= gpu.gpus_per_node:
        return link("pcie5" if gpu.pcie_gbs >= 64 else "pcie4")
    return link(network)


@dataclass(frozen=True)
class StepCommunication:
    """Seconds that one step spends in communication, by cause, and the links that carry it."""

    tensor: float
    pipeline: float
    expert: float
    tensor_link: str | None
    pipeline_link: str | None

    @property
    def total(self) -> float:
        """All of it, one after another."""
        return self.tensor + self.pipeline + self.expert


def step_communication(
    model: Model, parallel: ParallelPlan, gpu: Gpu, tokens: int, *, network: str = "ib-ndr", element_bytes: int = 2
) -> StepCommunication:
    """Communication of a step over ``tokens`` tokens through all layers.

    Tensor parallelism: two all-reduces a layer over T x D (after attention and after the MLP; Megatron,
    https://arxiv.org/abs/1909.08053). With expert parallelism the second is a pair of all-to-alls (dispatch and
    combine) over the active copies, plus an all-reduce where experts are cut too. Pipeline: one T x D message
    a stage border. Tensor-parallel ranks are neighbours; stages lie a group apart.
    """
    message = tokens * model.hidden * element_bytes
    inside = link_between(gpu, parallel.tp, network) if parallel.tp > 1 else None
    across = link_between(gpu, parallel.gpus, network) if parallel.pp > 1 else None
    tensor = expert = pipeline = 0.0
    if inside is not None:
        reduce = ring_all_reduce(parallel.tp, message, inside.one_way, inside.latency)
        if parallel.ep > 1 and model.moe is not None:
            copies = message * model.moe.active / parallel.ep
            exchange = 2 * all_to_all(parallel.ep, copies, inside.one_way, inside.latency)
            ways = parallel.tp // parallel.ep
            exchange += ring_all_reduce(ways, copies, inside.one_way, inside.latency)
            dense = model.layers - model.moe_layers
            expert = model.moe_layers * exchange
            tensor = reduce * (model.layers + dense)
        else:
            tensor = 2 * model.layers * reduce
    if across is not None:
        pipeline = (parallel.pp - 1) * point_to_point(message, across.one_way, across.latency)
    return StepCommunication(tensor, pipeline, expert, inside.name if inside else None, across.name if across else None)
