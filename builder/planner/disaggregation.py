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
from builder.planner.hardware import link
from builder.planner.types import ParallelPlan, Precision
from trtforge.models.kv import kv_bytes_per_token
from trtforge.models.record import Model

#: part of the work that prefill must be before GPUs of its own are busy
_LEAST_PREFILL_SHARE = 0.2


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
    model: Model,
    precision: Precision,
    parallel: ParallelPlan,
    count: int,
    *,
    tokens: float,
    prefill: float,
    share: float,
    network: str = "ib-ndr",
    itl: float = 0.05,
) -> Advice:
    """The advice for ``count`` GPUs.

    Args:
        tokens: of a mean prompt that are computed.
        prefill: seconds that they take on an idle replica (:func:`builder.planner.speed.serving.prefill_time`).
        share: part of a busy replica's time that prompts cost
            (:attr:`builder.planner.speed.serving.Served.input_share`).
        itl: seconds between tokens that the SLO allows.

    Raises:
        ForgeError: ``TF-PLN-002`` no such network.
    """
    isl, recompute = max(round(tokens), 1), prefill
    per_token = kv_bytes_per_token(model.kv, precision.kv)
    wire = link(network)
    # every rank sends its own part over its own adapter
    bandwidth = wire.one_way * parallel.gpus
    transfer = point_to_point(isl * per_token, bandwidth, wire.latency)
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
        break_even_bandwidth(per_token, recompute, isl),
        break_even_tokens(per_token, bandwidth, wire.latency, recompute, isl),
        share,
    )
