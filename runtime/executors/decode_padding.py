"""Decode steps padded to a bucket, so that a captured CUDA graph serves every batch size up to it.

A padding row is a request of its own: one token at a position of a block that no scheduler sees. Each has its own
slot, so the op's contract (no two new tokens in one slot) holds, and its logits are dropped.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from runtime.executors.base import StepBatch


def is_decode(batch: StepBatch) -> bool:
    """One token and one row of logits a request, in order, and no draft tree."""
    count = batch.num_requests
    return (
        count > 0
        and batch.num_tokens == count
        and batch.tree_mask is None
        and len(batch.logit_indices) == count
        and bool((batch.query_start == np.arange(count + 1)).all())
        and bool((batch.logit_indices == np.arange(count)).all())
    )


def bucket_of(count: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds ``count`` rows; None when none does."""
    place = bisect_left(buckets, count)
    return buckets[place] if place < len(buckets) else None


def pad(batch: StepBatch, bucket: int, *, columns: int, first_block: int, block_size: int) -> StepBatch:
    """``batch`` with rows up to ``bucket`` and a block table of ``columns`` columns.

    Args:
        first_block: the first padding block; as many follow as ``bucket`` rows need slots.
    """
    count, extra = batch.num_requests, bucket - batch.num_requests
    slots = np.arange(extra)
    table = np.full((bucket, columns), -1, dtype=np.int32)
    width = min(columns, batch.block_table.shape[1])
    table[:count, :width] = batch.block_table[:, :width]
    table[count:, 0] = first_block + slots // block_size
    positions = (slots % block_size).astype(np.int64)
    return StepBatch(
        input_ids=np.concatenate([batch.input_ids, np.zeros(extra, dtype=np.int64)]),
        positions=np.concatenate([batch.positions, positions]),
        query_start=np.arange(bucket + 1, dtype=np.int32),
        sequence_lengths=np.concatenate([batch.sequence_lengths, (positions + 1).astype(np.int32)]),
        block_table=table,
        logit_indices=np.arange(bucket, dtype=np.int64),
    )
