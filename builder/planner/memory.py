"""The memory of one GPU as a sum of terms: weights, draft, activations, runtime, KV pool.

Policy: the plan shows every term with its arithmetic. Weights, KV bytes and pool follow exactly from shapes
and formats; activations are the largest step's live tensors, with a range; what the driver and libraries take
is a range from reports. The pool follows TensorRT-LLM's rule: a share of the memory that is free once
everything else is loaded, never more than asked for in tokens.
Sources: https://nvidia.github.io/TensorRT-LLM/reference/memory.html and
https://nvidia.github.io/TensorRT-LLM/features/kvcache.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from builder.planner.hardware import Gpu
from builder.planner.precision import kv_bits
from builder.planner.runtime import runtime_terms
from builder.planner.types import ALONE, Beside, KvPool, MemoryPlan, ParallelPlan, Precision, Serving, Term
from builder.planner.weights import TensorGroup, rank_weights
from trtforge.ground.errors import GateFailed
from trtforge.models.kv import kv_bytes_per_token, pool_blocks, stage_layers
from trtforge.models.record import Model

_PARTS = {
    "embedding": "token embedding",
    "attention": "attention projections",
    "mlp": "MLP and routers",
    "experts": "experts",
    "norms": "norms and the rest",
    "head": "output head",
    "scales": "quantization scales",
}
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


# KV cache ----------------------------------------------------------------------------------------------------------
def pool_bytes(free: float, fraction: float = 0.9, max_tokens: int | None = None, bytes_per_token: int = 0) -> int:
    """TensorRT-LLM's rule: min(free memory x fraction, max tokens x bytes a token).

    Source: ``free_gpu_memory_fraction`` and ``max_tokens`` of KvCacheConfig,
    https://nvidia.github.io/TensorRT-LLM/features/kvcache.html
    """
    share = max(int(free * fraction), 0)
    return share if max_tokens is None else min(share, max_tokens * bytes_per_token)


# the plan ----------------------------------------------------------------------------------------------------------
def plan_memory(
    model: Model,
    weights: Sequence[TensorGroup],
    precision: Precision,
    parallel: ParallelPlan,
    serving: Serving,
    gpu: Gpu,
    beside: Beside = ALONE,
) -> tuple[MemoryPlan, ...]:
    """The plan of every pipeline stage, in order; ``weights`` are groups in the precision that is served."""
    return tuple(
        _stage_plan(model, weights, precision, parallel, serving, gpu, stage, beside) for stage in range(parallel.pp)
    )


def _stage_plan(
    model: Model,
    weights: Sequence[TensorGroup],
    precision: Precision,
    parallel: ParallelPlan,
    serving: Serving,
    gpu: Gpu,
    stage: int,
    beside: Beside,
) -> MemoryPlan:
    terms = _weight_terms(weights, model, parallel, stage)
    draft = beside.draft if stage == parallel.pp - 1 else None
    if draft is not None:
        terms.append(_draft_term(draft, beside.weights, ParallelPlan(parallel.tp, 1, 1)))
    terms += activation_terms(model, precision, parallel, serving, last=stage == parallel.pp - 1)
    terms += runtime_terms(parallel)
    if beside.reserved:
        others = beside.reserved
        terms.append(Term("other models on the GPU", "others", others, "as given", others, others))
    layers = len(stage_layers(model.layers, parallel.pp)[stage])
    per_token = kv_bytes_per_token(model.kv, precision.kv, tp=parallel.tp, layers=layers)
    arithmetic = _kv_arithmetic(model, precision.kv, parallel, layers)
    if draft is not None:
        extra = kv_bytes_per_token(draft.kv, serving.draft_kv or precision.kv, tp=parallel.tp)
        per_token += extra
        arithmetic += f" + {extra:,} of the draft"
    used = sum(term.bytes for term in terms)
    pool = _pool(gpu.visible_bytes - used, per_token, serving)
    formula = f"{pool.blocks:,} blocks x {pool.block_size} tokens x {per_token:,} B ({arithmetic}); " + (
        "as given" if pool.sized_by == "memory" else f"{serving.free_fraction:g} of the free memory"
    )
    # a share of what is free moves with the terms that are ranges; an absolute size does not
    sides = (sum(term.high for term in terms), sum(term.low for term in terms))
    ends = [_pool(gpu.visible_bytes - side, per_token, serving).bytes for side in sides]
    terms.append(Term("KV pool", "kv", pool.bytes, formula, min(ends), max(ends)))
    return MemoryPlan(stage, tuple(terms), pool, gpu.visible_bytes)


def _weight_terms(weights: Sequence[TensorGroup], model: Model, parallel: ParallelPlan, stage: int) -> list[Term]:
    parts = rank_weights(weights, model, parallel, stage)
    terms = []
    for part, title in _PARTS.items():
        size = parts.get(part, 0)
        if not size:
            continue
        formats = sorted({group.dtype for group in weights if group.part == part})
        how = ", ".join(formats) if len(formats) < 4 else f"{len(formats)} formats"
        split = f"; rank of {parallel}" if parallel.gpus > 1 else ""
        terms.append(Term(title, "weights", size, f"sum of its tensors ({how}{split})", size, size))
    return terms


def _draft_term(draft: Model, groups: Sequence[TensorGroup], parallel: ParallelPlan) -> Term:
    size = sum(rank_weights(groups, draft, parallel).values())
    return Term("draft model's weights", "draft", size, f"sum of the tensors of {draft.name}", size, size)


def _kv_arithmetic(model: Model, kv: str, parallel: ParallelPlan, layers: int) -> str:
    width = f"{kv_bits(kv) / 8:g} B"
    if model.mla is not None:
        return f"{layers} layers x ({model.mla.kv_rank} + {model.mla.rope_size}) latent x {width}"
    heads = -(-model.kv_heads // parallel.tp)
    return f"2 x {layers} layers x {heads} heads x {model.head_size} x {width}"


def _pool(free: int, per_token: int, serving: Serving) -> KvPool:
    if serving.pool_bytes is not None:
        wanted, sized_by = serving.pool_bytes, "memory"
    else:
        wanted, sized_by = pool_bytes(free, serving.free_fraction), "free_fraction"
    per_block = per_token * serving.block_size
    blocks = pool_blocks(wanted, per_token, serving.block_size)
    return KvPool(blocks * per_block, serving.block_size, per_token, per_block, blocks, sized_by)


def activation_terms(
    model: Model, precision: Precision, parallel: ParallelPlan, serving: Serving, *, last: bool = True
) -> list[Term]:
    """Live tensors of the largest step, and on the last stage its logits.

    Alive at once: the residual stream and its norm, and the larger of attention (q, k, v and the result) and MLP
    (gate, up and their product); the upper bound is without any reuse between the two halves. Experts see
    ``active`` copies of a token, shared out over expert-parallel ranks when routing is even, all on one when not.
    Logits are float32: one row a request and draft token (V is gathered on every rank).
    """
    width, tokens = _FLOAT_BYTES[precision.base], serving.max_num_tokens
    attention = math.ceil((2 * model.heads + 2 * model.kv_heads) * model.head_size / parallel.tp)
    dense = math.ceil(3 * model.ffn / parallel.tp)
    even = worst = dense
    if model.moe is not None:
        inner = math.ceil(3 * model.moe.ffn * parallel.ep / parallel.tp) + 2 * model.hidden
        shared = math.ceil(3 * model.moe.shared_ffn / parallel.tp)
        even = max(math.ceil(inner * model.moe.active / parallel.ep) + shared, dense if model.moe.dense_layers else 0)
        worst = max(inner * model.moe.active + shared, even)
    stream = 2 * model.hidden
    typical = width * tokens * (stream + max(attention, even))
    high = width * tokens * (stream + attention + worst)
    formula = f"{width} B x {tokens:,} tokens x ({stream:,} residual + max({attention:,} attention, {even:,} MLP))"
    terms = [Term("activations of the largest step", "activations", typical, formula, typical, high)]
    if last:
        rows = serving.max_batch_size * (1 + serving.draft_tokens)
        logits = 4 * rows * model.vocab
        terms.append(
            Term("logits", "activations", logits, f"4 B x {rows:,} rows x {model.vocab:,}", logits, 2 * logits)
        )
    return terms


# against an engine -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GateResult:
    """A plan against a measured engine; ``difference`` is (measured - planned) / planned."""

    planned: int
    measured: int
    difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference lies inside the tolerance."""
        return abs(self.difference) <= self.tolerance


def compare(plan: MemoryPlan, measured: int, *, tolerance: float = 0.05) -> GateResult:
    """The plan's total against the device memory that the engine was measured to take."""
    return GateResult(plan.total, measured, (measured - plan.total) / plan.total, tolerance)


def gate(plan: MemoryPlan, measured: int, *, tolerance: float = 0.05) -> GateResult:
    """:func:`compare` as a gate.

    Raises:
        GateFailed: ``TF-PLN-010`` the measured memory is further from the plan than ``tolerance``.
    """
    result = compare(plan, measured, tolerance=tolerance)
    if result.passed:
        return result
    low, high = plan.bounds
    inside = low <= measured <= high
    raise GateFailed(
        "TF-PLN-010",
        f"the engine takes {measured / 2**30:.2f} GiB, the plan says {plan.total / 2**30:.2f} GiB "
        f"({result.difference:+.1%})",
        asked=f"within {tolerance:.0%}",
        numbers={"planned": plan.total, "measured": measured, "low": low, "high": high, "tolerance": tolerance},
        why="A plan that is off decides admission and pool wrongly: the engine runs out of memory, or wastes it."
        + (" The measurement lies inside the plan's range." if inside else ""),
        remedies=[
            "compare the engine's log line by line with the plan: trtforge plan RECIPE --gpu NAME",
            "set build.kv_cache.memory to the pool that the engine reports",
        ],
    )
