"""Prefill and decode on GPUs of their own: whether it pays, by three conditions, and what moving the cache costs.

The conditions, after DistServe (https://arxiv.org/abs/2401.09670), Splitwise (https://arxiv.org/abs/2311.18677) and
NVIDIA Dynamo's guide (https://docs.nvidia.com/dynamo/v1.2.0/user-guides/disaggregated-serving):

1. interference: prefilling a prompt holds up running answers for longer than the token interval allows, and
   prefill is a large enough part of the work to fill GPUs of its own;
2. scale: there are at least two replicas' worth of GPUs and load to fill both kinds;
3. transfer: the network brings a prompt's KV cache sooner than the decoding GPUs could compute it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.planner.communication import point_to_point
from builder.planner.hardware import Gpu, link
from builder.planner.memory import kv_bytes_per_token
from builder.planner.precision import compute_format, weight_format
from builder.planner.types import ModelFacts, ParallelPlan, Precision, Workload
from builder.planner.weights import parameter_count

#: share of the dense peak that a prefill reaches. Source: 60 to 80 % on an A100 in
#: https://fridayswithfaraday.com/posts/disaggregated-prefill-decode-serving; the lower half is the careful choice
PREFILL_EFFICIENCY = 0.5
#: part of the work that prefill must be before GPUs of its own are busy
_LEAST_PREFILL_SHARE = 0.2


def recompute_seconds(tokens: int, flops_a_token: float, flops: float) -> float:
    """Seconds to prefill ``tokens`` tokens: tokens x operations a token / operations a second."""
    return tokens * flops_a_token / flops


def break_even_bandwidth(bytes_per_token: float, flops_a_token: float, flops: float) -> float:
    """Bytes a second above which moving the KV cache of a token beats computing it again."""
    return bytes_per_token * flops / flops_a_token


def break_even_tokens(
    bytes_per_token: float, bandwidth: float, latency: float, flops_a_token: float, flops: float
) -> float | None:
    """Prompt length from which transfer is faster than recomputing, latency included; None when it never is."""
    gain = flops_a_token / flops - bytes_per_token / bandwidth
    return latency / gain if gain > 0 else None


@dataclass(frozen=True)
class Condition:
    """One condition: its name, whether it holds, and its arithmetic."""

    name: str
    holds: bool
    why: str


@dataclass(frozen=True)
class Advice:
    """Whether to disaggregate, the conditions, and the transfer against the computation (seconds, bytes a second)."""

    disaggregate: bool
    conditions: tuple[Condition, ...]
    transfer: float
    recompute: float
    break_even_bandwidth: float
    break_even_tokens: float | None
    prefill_share: float


def advise(
    model: ModelFacts,
    precision: Precision,
    parallel: ParallelPlan,
    gpu: Gpu,
    count: int,
    workload: Workload,
    *,
    network: str = "ib-ndr",
    itl: float = 0.05,
    in_flight: int = 1,
) -> Advice:
    """The advice for a workload on ``count`` GPUs.

    Args:
        itl: seconds between tokens that the SLO allows.
        in_flight: requests that decode together, which share the reading of the weights.

    Raises:
        ForgeError: ``TF-PLN-002`` no such network.
    """
    isl, osl = max(round(workload.mean_isl), 1), max(workload.mean_osl, 1.0)
    operations = 2.0 * parameter_count(model, active=True)
    rate = gpu.flops(compute_format(precision.weights, gpu)) or gpu.flops("fp16") or 1.0
    flops = rate * PREFILL_EFFICIENCY * parallel.gpus
    recompute = recompute_seconds(isl, operations, flops)
    per_token = kv_bytes_per_token(model, precision.kv)
    wire = link(network)
    # every rank sends its own part over its own adapter
    bandwidth = wire.one_way * parallel.gpus
    transfer = point_to_point(isl * per_token, bandwidth, wire.latency)
    width = weight_format(precision.weights).bits_per_value / 8
    reading = parameter_count(model) * width / (gpu.bandwidth * parallel.gpus)
    decode = osl * reading / max(in_flight, 1)
    share = recompute / (recompute + decode)
    blocked = recompute > itl and share >= _LEAST_PREFILL_SHARE
    enough = count >= 2 * parallel.gpus
    conditions = (
        Condition(
            "interference",
            blocked,
            f"a prompt of {isl:,} tokens takes {recompute * 1000:.0f} ms of prefill, {itl * 1000:.0f} ms between "
            f"tokens are allowed; prefill is {share:.0%} of the work (at least {_LEAST_PREFILL_SHARE:.0%})",
        ),
        Condition(
            "scale", enough, f"{count} GPUs hold {count // parallel.gpus} replicas of {parallel}; two are needed"
        ),
        Condition(
            "transfer",
            transfer < recompute,
            f"{isl * per_token / 1e9:.2f} GB over {wire.title} take {transfer * 1000:.1f} ms, "
            f"computing them again {recompute * 1000:.1f} ms",
        ),
    )
    return Advice(
        all(item.holds for item in conditions),
        conditions,
        transfer,
        recompute,
        break_even_bandwidth(per_token, operations, flops),
        break_even_tokens(per_token, bandwidth, wire.latency, operations, flops),
        share,
    )
