"""Step costs measured when an engine is loaded: real steps on the executors, before anybody is served.

The steps write into blocks that are borrowed of the pool and given back, and nothing is published, so the prefix cache
knows nothing of them. Sizes are run round after round, so that a busy moment does not fall on one of them, and the
quickest run of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.blocks import BlockPool
from runtime.executors.base import Executor, StepBatch
from runtime.speculation.costs import StepCosts
from trtforge.drafting.record import SpeculationRecord

#: context of the measured steps, as far as the blocks reach
CONTEXT = 256
#: runs of each size at most
_ROUNDS = 3
#: tokens in one request up to which every size is measured: kernels change between them
_EACH = 9
#: sizes beyond it. Kernels of blocks of 32 or 64 rows jump behind each: with AMX, 33 rows are half as dear again as 32
_BEYOND = (12, 16, 24, 32, 33, 48, 64, 65, 96, 128)

Run = Callable[[], Any]


def clock_of(device: str) -> Callable[[], float]:
    """The clock of steps on ``device``, in seconds.

    On a CPU the stepping thread's own processor time: it computes in every kernel, and what others on the machine take
    of the processor makes all steps longer without making one length better than another.
    """
    return time.thread_time if device == "cpu" else time.perf_counter


def measure(
    executor: Executor,
    pool: BlockPool,
    record: SpeculationRecord,
    draft: Any = None,
    *,
    seconds: float = 1.0,
    tick: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """Costs of the target's steps, and of the draft's passes where there is a drafter with weights.

    Args:
        pool: of the engine; blocks are taken and given back.
        draft: the executor of the drafter with weights: a ``DraftExecutor`` of a head, or an ordinary one; None: none.
        seconds: time to spend, roughly; each size is run once all the same, and then again, small ones first.
        tick: the clock of what is measured.
    """
    limits, size = executor.limits, executor.block_size
    context = min(CONTEXT, limits.max_seq_len, pool.num_free * size)
    most = min(limits.max_num_tokens, limits.max_batch_size * (1 + record.most_tokens))
    beside = [n for n in _doubling(limits.max_batch_size) if n * -(-context // size) <= pool.num_free]
    blocks = pool.allocate(max(beside) * -(-context // size))
    try:
        table = np.array(blocks, dtype=np.int32).reshape(max(beside), -1)
        parts: dict[str, dict[int, Run]] = {
            "verify": {n: _step(executor, _batch(table[:1], context, n)) for n in _sizes(most, context)},
            "requests": {n: _step(executor, _batch(table[:n], context, 1)) for n in beside},
        }
        if draft is not None:
            parts["draft"] = {n: _pass(draft, _batch(table[:n], context, 1)) for n in beside}
        found = _quickest(parts, seconds, tick)
    finally:
        pool.release(blocks)
    return StepCosts(
        found["verify"], found["requests"], found.get("draft"), most_tokens=max(limits.max_num_tokens, most)
    )


def _quickest(
    parts: dict[str, dict[int, Run]], seconds: float, tick: Callable[[], float]
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {part: {} for part in parts}
    for sizes in parts.values():
        sizes[max(sizes)]()  # the first of its kind allocates
    ends = time.perf_counter() + seconds
    for turn in range(_ROUNDS):
        for part, sizes in parts.items():
            for size in sorted(sizes):
                known = found[part].get(size)
                if turn and known is not None and time.perf_counter() + known > ends:
                    continue
                before = tick()
                sizes[size]()
                taken = max(tick() - before, 1e-9)
                found[part][size] = taken if known is None else min(known, taken)
    return found


def _step(executor: Executor, batch: StepBatch) -> Run:
    return lambda: _wait(executor.execute(batch))


def _pass(draft: Any, batch: StepBatch) -> Run:
    """One pass of a chain: fed back states for a head, the token alone for a draft model."""
    if not hasattr(draft, "hidden_size") or not hasattr(draft, "tap_width"):
        return _step(draft, batch)
    import torch

    feedback = torch.zeros(batch.num_tokens, draft.hidden_size)
    return lambda: _wait(draft.execute(batch, feedback=feedback)[0])


def _wait(logits: Any) -> None:
    """Until the device is done."""
    if getattr(logits, "is_cuda", False):
        logits[:1].cpu()


def _batch(table: Any, context: int, tokens: int) -> StepBatch:
    """``tokens`` new tokens behind a context for each row of the block table; every row's logits are wanted."""
    requests = len(table)
    ends = np.full(requests, context, dtype=np.int32)
    total = requests * tokens
    return StepBatch(
        input_ids=np.zeros(total, dtype=np.int64),
        positions=np.tile(np.arange(context - tokens, context, dtype=np.int64), requests),
        query_start=np.arange(0, total + 1, tokens, dtype=np.int32),
        sequence_lengths=ends,
        block_table=np.ascontiguousarray(table),
        logit_indices=np.arange(total, dtype=np.int64),
    )


def _sizes(most: int, context: int) -> list[int]:
    """Tokens of one request to measure: each small number, then wider and wider."""
    top = max(min(most, context), 1)
    sizes = set(range(1, min(_EACH, top) + 1)) | {n for n in _BEYOND if n <= top}
    # beyond the largest the line goes on; a top of its own only where it is near
    return sorted(sizes | ({top} if top < 2 * max(sizes) else set()))


def _doubling(most: int) -> list[int]:
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == most else [*sizes, most]
