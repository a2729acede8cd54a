"""Several models on one GPU, in absolute bytes.

Policy: fractions of free memory depend on who starts first, so models that share a GPU get pools in bytes.
Source: https://github.com/triton-inference-server/tensorrtllm_backend/issues/303 and 456.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.planner.hardware import Gpu
from builder.planner.types import MemoryPlan, not_enough


@dataclass(frozen=True)
class Tenant:
    """A model on a shared GPU: what it takes beside its pool, and its weight in dividing the rest."""

    name: str
    fixed: int
    bytes_per_block: int
    weight: float = 1.0


@dataclass(frozen=True)
class Allotment:
    """What a tenant gets: ``build.kv_cache.memory`` of its recipe, in bytes of whole blocks."""

    name: str
    fixed: int
    pool: int


def tenant(name: str, plans: Sequence[MemoryPlan], weight: float = 1.0) -> Tenant:
    """A tenant from the plans of its pipeline stages: each GPU must hold the fullest of its ranks."""
    fixed = max(plan.total - plan.of("kv") for plan in plans)
    return Tenant(name, fixed, max(plan.pool.bytes_per_block for plan in plans), weight)


def share_gpu(tenants: Sequence[Tenant], gpu: Gpu, *, keep_free: float = 0.05) -> list[Allotment]:
    """Divide what the tenants' fixed parts leave, in proportion to their weights, in whole blocks.

    Args:
        keep_free: share of the GPU's visible memory that nobody gets.

    Raises:
        ForgeError: ``TF-PLN-012`` the fixed parts leave less than one block for each.
    """
    fixed = sum(item.fixed for item in tenants)
    room = int(gpu.visible_bytes * (1 - keep_free)) - fixed
    total = sum(item.weight for item in tenants)
    result = []
    for item in tenants:
        part = int(max(room, 0) * item.weight / total)
        result.append(Allotment(item.name, item.fixed, part // item.bytes_per_block * item.bytes_per_block))
    if any(item.pool == 0 for item in result):
        raise not_enough(
            "TF-PLN-012",
            f"{len(tenants)} models do not fit one {gpu.title}: {fixed / 2**30:.2f} GiB beside their KV pools",
            asked=", ".join(item.name for item in tenants),
            why="Each process holds its weights, activations and CUDA context besides its pool.",
            remedies=[
                "fewer models a GPU",
                "quantize the weights: quantize.format",
                "a wider split: build.parallel",
                "a GPU with more memory",
            ],
            fixed={item.name: item.fixed for item in tenants},
            visible=gpu.visible_bytes,
        )
    return result
