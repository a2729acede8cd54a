"""Logits of given tokens, through the executor that serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime import errors
from runtime.blocks import BlockPool
from runtime.executors.base import Executor, ExecutorLimits, StepBatch

#: Rows of logits that one teacher-forced step asks for: bounds the [L, V] buffer.
LOGIT_ROWS = 256


def teacher_forced(
    tokens: npt.NDArray[np.int64], executor: Executor, pool: BlockPool, limits: ExecutorLimits
) -> npt.NDArray[np.float32]:
    """Logits of every position, float32 [S, V]; in chunks over blocks of ``pool`` that are free, and free again after.

    Raises:
        ForgeError: ``TF-RUN-051`` more tokens than a context has; ``TF-RUN-054`` than the free blocks hold.
    """
    length, size = len(tokens), executor.block_size
    if length > limits.max_seq_len:
        raise errors.prompt_too_long(length, limits.max_seq_len, "max_seq_len")
    count = -(-length // size)
    if count > pool.num_free:
        raise errors.too_few_blocks(length, count, pool.num_free, size)
    blocks = pool.allocate(count)
    result = np.empty((length, executor.vocab_size), dtype=np.float32)
    chunk = min(limits.max_num_tokens, LOGIT_ROWS)
    try:
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            batch = StepBatch(
                input_ids=tokens[start:end],
                positions=np.arange(start, end, dtype=np.int64),
                query_start=np.array([0, end - start], dtype=np.int32),
                sequence_lengths=np.array([end], dtype=np.int32),
                block_table=np.array([blocks[: -(-end // size)]], dtype=np.int32),
                logit_indices=np.arange(end - start, dtype=np.int64),
            )
            rows: Any = executor.execute(batch)
            result[start:end] = rows.cpu().numpy() if hasattr(rows, "cpu") else rows
    finally:
        pool.release(blocks)
    return result
