"""What every executor checks of a step before it runs it, and the mask of one that verifies no tree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.executors.base import ExecutorLimits, StepBatch


def check_batch(batch: StepBatch, limits: ExecutorLimits, vocab_size: int, *, tree: bool) -> None:
    """Refuse a batch that breaks the limits or whose arrays disagree.

    Args:
        tree: whether the graph takes a tree mask.

    Raises:
        ValueError: with the numbers; such a batch is a bug of the caller.
    """
    tokens, requests = batch.num_tokens, batch.num_requests
    if tokens > limits.max_num_tokens or requests > limits.max_batch_size:
        raise ValueError(
            f"a step of {tokens} tokens and {requests} requests is over the engine's limits "
            f"({limits.max_num_tokens}, {limits.max_batch_size})"
        )
    starts = batch.query_start
    if len(starts) != requests + 1 or len(batch.block_table) != requests or len(batch.positions) != tokens:
        raise ValueError("the arrays of the batch disagree in length")
    if tokens and (int(starts[0]) != 0 or int(starts[-1]) != tokens):
        raise ValueError(f"query_start runs from {starts[0]} to {starts[-1]} over {tokens} tokens")
    if tokens and (int(batch.input_ids.min()) < 0 or int(batch.input_ids.max()) >= vocab_size):
        raise ValueError("input_ids leave the vocabulary")
    if requests and int(batch.sequence_lengths.max()) > limits.max_seq_len:
        raise ValueError(f"a context of {int(batch.sequence_lengths.max())} is over max_seq_len {limits.max_seq_len}")
    if tokens and (int(batch.positions.max()) >= limits.max_seq_len or int(batch.positions.min()) < 0):
        raise ValueError(f"positions leave 0 … {limits.max_seq_len - 1}")
    rows = batch.logit_indices
    if len(rows) and (len(rows) > limits.max_num_tokens or int(rows.min()) < 0 or int(rows.max()) >= tokens):
        raise ValueError("logit_indices leave the step's tokens")
    if batch.tree_mask is None:
        return
    if not tree:
        raise ValueError("the engine's graph takes no tree mask")
    shape, longest = batch.tree_mask.shape, longest_query(batch)
    if len(shape) != 2 or shape[0] != tokens or (shape[1] != 1 and shape[1] < longest):
        raise ValueError(f"a tree mask of shape {shape} for {tokens} tokens, {longest} of one request")


def longest_query(batch: StepBatch) -> int:
    """The most new tokens of a request."""
    return int(np.diff(batch.query_start).max(initial=0))


def mask_of(batch: StepBatch) -> npt.NDArray[np.uint8]:
    """uint8 [T, W] for a graph that takes a tree mask: the step's own, or one column, which means plain causality."""
    return batch.tree_mask if batch.tree_mask is not None else np.ones((batch.num_tokens, 1), dtype=np.uint8)
