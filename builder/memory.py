"""The memory plan of an engine: weights as executed, activations of the largest step, KV pool.

Policy: the plan is arithmetic over figures that the engine records, so anyone can check it. A pool
that cannot hold one request of ``max_seq_len`` is refused when the engine is built, with what would
fit, instead of failing under load. Sizes are bytes; GiB are 2^30.

How many blocks: from ``memory``; else from ``free_fraction`` (share of the machine's free memory that
weights, activations and pool may take together, so the result depends on the machine); else enough
for a full batch of longest requests, at most 1 GiB.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from builder.graphs.info import GraphInfo
from trtforge.formats.table import load_formats
from trtforge.ground.errors import ForgeError
from trtforge.ground.units import format_size
from trtforge.models.kv import blocks_of, kv_bytes_per_token, pool_blocks
from trtforge.recipe.schema import KvCache, Limits

#: size of the pool when the recipe names none
DEFAULT_POOL_BYTES = 2**30
#: free memory is rounded down to this, so that small fluctuations do not change the plan
FREE_GRANULE = 64 * 2**20


@dataclass(frozen=True)
class DraftMemory:
    """What drafts beside the model: its weights, its activations of the largest step, its part of a block."""

    weights_bytes: int
    activation_bytes: int
    bytes_per_token: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by purpose, and the pool: ``num_blocks`` blocks (N) of ``block_size`` slots (S) in every layer.

    A draft's layers lie under the same block numbers: weights, activations and blocks count both models, and ``draft``
    says what of them is the draft's.
    """

    weights_bytes: int
    activation_bytes: int
    kv_pool_bytes: int
    block_size: int
    num_blocks: int
    bytes_per_block: int
    bytes_per_token: int
    tokens_in_pool: int
    blocks_per_longest_request: int
    longest_requests_in_pool: int
    sized_by: str
    draft: DraftMemory | None = None

    @property
    def target_bytes_per_block(self) -> int:
        """Bytes of a block in the model's own pools."""
        return self.bytes_per_block - self.draft_bytes_per_block

    @property
    def draft_bytes_per_block(self) -> int:
        """Bytes of a block in the draft's pools."""
        return 0 if self.draft is None else self.draft.bytes_per_token * self.block_size

    @property
    def total_bytes(self) -> int:
        """Everything that the engine allocates for one instance."""
        return self.weights_bytes + self.activation_bytes + self.kv_pool_bytes

    def to_json(self) -> dict[str, Any]:
        """The plan as engine.json holds it."""
        plain = {**asdict(self), "total_bytes": self.total_bytes}
        if self.draft is None:
            del plain["draft"]
        return plain


def activation_bytes(graph: GraphInfo, limits: Limits, draft_tokens: int = 0) -> int:
    """Upper bound of a step's float32 intermediates: max_num_tokens rows, and logits of max_batch_size requests.

    ``draft_tokens`` of a request are verified in a step beside its last token, each with a row of logits. Alive at
    once: the residual stream and its norm, and the larger of attention (q, k, v and the result) and MLP (gate, up and
    their product). A head over a draft vocabulary has that many columns of logits.
    """
    heads = 2 * graph.num_heads * graph.head_size + 2 * graph.num_kv_heads * graph.head_size
    row = 2 * graph.hidden_size + max(heads, 3 * graph.intermediate_size)
    rows = min(limits.max_num_tokens, limits.max_batch_size * (1 + draft_tokens))
    columns = int(graph.drafter.get("draft_vocab_size", graph.vocab_size))
    return 4 * (limits.max_num_tokens * row + rows * columns)


def plan_memory(
    graph: GraphInfo,
    limits: Limits,
    kv_cache: KvCache,
    *,
    weights_bytes: int,
    free_bytes: int | None = None,
    draft_tokens: int = 0,
    draft: DraftMemory | None = None,
) -> MemoryPlan:
    """Divide memory among weights, activations and the KV pool, for a model and what drafts beside it.

    Args:
        weights_bytes: bytes of the weights in the representation that is executed.
        free_bytes: free memory of the machine; needed (and used) for ``free_fraction`` only.
        draft_tokens: most draft tokens of a request in a step.
        draft: the model that drafts; None: nothing with weights does.

    Raises:
        ForgeError: ``TF-BLD-010`` the pool cannot hold one request of ``max_seq_len``; ``TF-BLD-011``
            weights and activations alone exceed the share of the free memory.
    """
    per_token = kv_bytes_per_token(graph.kv, graph.kv_cache["format"])
    activations = activation_bytes(graph, limits, draft_tokens)
    if draft is not None:
        per_token += draft.bytes_per_token
        weights_bytes, activations = weights_bytes + draft.weights_bytes, activations + draft.activation_bytes
    per_block = per_token * kv_cache.block_size
    longest = blocks_of(limits.max_seq_len, kv_cache.block_size)
    if kv_cache.memory is not None:
        pool, sized_by = kv_cache.memory, "memory"
    elif kv_cache.free_fraction is not None:
        if free_bytes is None:
            raise ValueError("free_fraction needs free_bytes")
        usable = int(free_bytes // FREE_GRANULE * FREE_GRANULE * kv_cache.free_fraction)
        pool, sized_by = usable - weights_bytes - activations, "free_fraction"
        if pool <= 0:
            raise _nothing_left(usable, weights_bytes, activations, kv_cache.free_fraction)
    else:
        wanted = longest * limits.max_batch_size * per_block
        pool, sized_by = max(min(wanted, DEFAULT_POOL_BYTES), longest * per_block), "default"
    blocks = pool_blocks(pool, per_token, kv_cache.block_size)
    if blocks < longest:
        raise _too_small(limits, kv_cache, pool, per_block, longest, blocks)
    return MemoryPlan(
        weights_bytes=weights_bytes,
        activation_bytes=activations,
        kv_pool_bytes=blocks * per_block,
        block_size=kv_cache.block_size,
        num_blocks=blocks,
        bytes_per_block=per_block,
        bytes_per_token=per_token,
        tokens_in_pool=blocks * kv_cache.block_size,
        blocks_per_longest_request=longest,
        longest_requests_in_pool=blocks // longest,
        sized_by=sized_by,
        draft=draft,
    )


def _too_small(limits: Limits, kv_cache: KvCache, pool: int, per_block: int, longest: int, blocks: int) -> ForgeError:
    fits = blocks * kv_cache.block_size
    needed = longest * per_block
    remedies = [f"Set build.kv_cache.memory to at least {-(-needed // 2**20)}MiB"]
    if fits:
        remedies.append(f"Set build.limits.max_seq_len to at most {fits}")
    remedies.append(f"Quantize the KV cache: quantize.kv_cache: {load_formats().first_choice.kv_cache}")
    return ForgeError(
        "TF-BLD-010",
        f"A KV pool of {format_size(pool)} holds {fits} tokens; one request may have {limits.max_seq_len}",
        asked=f"build.kv_cache of {format_size(pool)} with build.limits.max_seq_len {limits.max_seq_len}",
        numbers={
            "pool_bytes": pool,
            "bytes_per_block": per_block,
            "block_size": kv_cache.block_size,
            "blocks": blocks,
            "blocks_needed": longest,
            "bytes_needed": needed,
            "max_seq_len_that_fits": fits,
        },
        why="A request that cannot hold its own context in the pool could never finish.",
        remedies=remedies,
    )


def _nothing_left(usable: int, weights: int, activations: int, fraction: float) -> ForgeError:
    return ForgeError(
        "TF-BLD-011",
        f"Weights and activations need {format_size(weights + activations)} of the {format_size(usable)} allowed",
        asked=f"build.kv_cache.free_fraction {fraction:g}",
        numbers={"usable_bytes": usable, "weights_bytes": weights, "activation_bytes": activations},
        why="Nothing of the share of free memory is left for the KV pool.",
        remedies=[
            "Free memory on this machine or raise build.kv_cache.free_fraction",
            "Lower build.limits.max_num_tokens",
            "Quantize the weights: quantize.format",
        ],
    )
