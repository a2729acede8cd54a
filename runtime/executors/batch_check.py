"""What every executor checks of a step before it runs it, and the mask that stands for plain causality."""

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
    if batch.tree_mask is not None and not tree:
        raise ValueError("the engine's graph takes no tree mask")


def causal_mask(batch: StepBatch) -> npt.NDArray[np.uint8]:
    """uint8 [T, W]: each new token sees itself and the request's earlier new ones."""
    lengths = np.diff(batch.query_start)
    width = int(lengths.max()) if len(lengths) else 1
    rank = np.arange(batch.num_tokens) - np.repeat(batch.query_start[:-1], lengths)
    mask: npt.NDArray[np.uint8] = (np.arange(width)[None] <= rank[:, None]).astype(np.uint8)
    return mask
