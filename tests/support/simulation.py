"""An executor without a model: deterministic logits from the context as it lies in the pool.

For tests, benchmarks of the bookkeeping, and dry runs of a scheduler's settings. Its "keys and values" are the
tokens themselves, written to and read through the block table. The next token is a hash of the whole
context *as found in the pool*, so a wrong block, a missed copy, a stale cache entry or a wrong
position changes the output. :meth:`SimulatedExecutor.reference` computes the same without a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.executors.base import ExecutorLimits, StepBatch

_EMPTY = np.uint64(0)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer, element by element."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _cells(tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return _mix(tokens.astype(np.uint64) * np.uint64(1_000_003) + positions.astype(np.uint64) + np.uint64(1))


class SimulatedExecutor:
    """Executor over a pool of hashed tokens.

    Args:
        num_blocks: N.
        block_size: S.
        vocab_size: V.
        limits: capacity to report.
        eos_token_ids: tokens that end a generation.
        shape: changes each row's logits [V], for tests that want certain tokens; gets the context hash.
        checked: verify every batch against the contract and every write against ``writable``.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = 97,
        limits: ExecutorLimits | None = None,
        eos_token_ids: tuple[int, ...] = (),
        shape: Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.float32]] | None = None,
        checked: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.limits = limits or ExecutorLimits(8, 32, 64, 63)
        self.eos_token_ids = eos_token_ids
        self._shape = shape
        self._checked = checked
        self.pool = np.full((num_blocks, block_size), _EMPTY, dtype=np.uint64)
        self.steps = 0
        self.tokens = 0
        self.copies = 0
        self.moves = 0
        #: asked for every block written in a step; False fails the step (copy on write was missed)
        self.writable: Callable[[int], bool] | None = None
        #: raised by the next step, once
        self.fault: Exception | None = None

    def execute(self, batch: StepBatch) -> npt.NDArray[np.float32]:
        """Logits float32 [L, V]."""
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.copy_blocks(batch.block_copies)
        queries = np.diff(batch.query_start)
        requests = np.repeat(np.arange(batch.num_requests), queries)
        before = batch.sequence_lengths - queries  # context of each request before the step
        slots = np.arange(batch.num_tokens) + np.repeat(before - batch.query_start[:-1], queries)
        blocks = batch.block_table[requests, slots // self.block_size]
        if self._checked:
            self._check(batch, blocks, slots)
        self.pool[blocks, slots % self.block_size] = _cells(batch.input_ids, batch.positions)
        self.steps += 1
        self.tokens += batch.num_tokens
        rows = []
        for token in batch.logit_indices.tolist():
            request = int(requests[token])
            at = np.arange(int(slots[token]) + 1)
            if batch.tree_mask is not None:
                new = np.flatnonzero(batch.tree_mask[token, : queries[request]])
                at = np.concatenate([np.arange(before[request]), before[request] + new])
            cells = self.pool[batch.block_table[request, at // self.block_size], at % self.block_size]
            rows.append(self._row(cells))
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), dtype=np.float32)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, in order."""
        for source, destination in pairs:
            self.pool[destination] = self.pool[source]
            self.copies += 1

    def move_rows(
        self,
        block_table: npt.NDArray[np.int32],
        base_positions: npt.NDArray[np.int32],
        path: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
    ) -> None:
        """Move the cells of accepted tree nodes together: see :meth:`Executor.move_rows`."""
        size = self.block_size
        for table, base, nodes, count in zip(block_table, base_positions.tolist(), path, lengths.tolist(), strict=True):
            source, target = base + nodes[:count], base + np.arange(count)
            self.pool[table[target // size], target % size] = self.pool[table[source // size], source % size]
            self.moves += 1

    def close(self) -> None:
        """Holds nothing that another process could want."""

    def describe(self) -> dict[str, Any]:
        """What this is."""
        return {"executor": "simulated", "num_blocks": self.num_blocks, "block_size": self.block_size}

    def reference(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [V] after the context ``tokens``, computed without a pool."""
        context = np.asarray(tokens, dtype=np.int64)
        return self._row(_cells(context, np.arange(len(context), dtype=np.int64)))

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The next ``count`` greedy tokens after ``prompt`` (stopping after an end-of-sequence token)."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.reference(tokens).argmax()))
            if tokens[-1] in self.eos_token_ids:
                break
        return tokens[len(prompt) :]

    def _row(self, cells: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        context = _mix(np.add.reduce(cells, dtype=np.uint64)[None])
        bits = _mix(context + np.arange(1, self.vocab_size + 1, dtype=np.uint64))
        logits = ((bits >> np.uint64(40)).astype(np.float32) * np.float32(8.0 / 2**24)).astype(np.float32)
        return logits if self._shape is None else self._shape(logits, int(context[0]))

    def _check(self, batch: StepBatch, blocks: npt.NDArray[np.int32], places: npt.NDArray[np.int64]) -> None:
        limits, count = self.limits, batch.num_requests
        assert 1 <= batch.num_tokens <= limits.max_num_tokens, f"T = {batch.num_tokens}"
        assert 1 <= count <= limits.max_batch_size, f"B = {count}"
        assert batch.query_start[0] == 0 and batch.query_start[-1] == batch.num_tokens
        assert batch.positions.shape == batch.input_ids.shape
        assert (np.diff(batch.query_start) >= 1).all(), "a request without tokens"
        assert (batch.sequence_lengths <= limits.max_seq_len).all()
        for name, kind in (
            ("input_ids", np.int64),
            ("positions", np.int64),
            ("query_start", np.int32),
            ("sequence_lengths", np.int32),
            ("block_table", np.int32),
            ("logit_indices", np.int64),
        ):
            array = getattr(batch, name)
            assert array.dtype == kind and array.flags.c_contiguous, f"{name}: {array.dtype}"
        for b in range(count):
            first, last = int(batch.query_start[b]), int(batch.query_start[b + 1])
            length = int(batch.sequence_lengths[b])
            depths = np.arange(last - first)
            if batch.tree_mask is not None:
                assert batch.tree_mask.dtype == np.uint8 and batch.tree_mask.shape[0] == batch.num_tokens
                seen = batch.tree_mask[first:last, : last - first]
                assert (seen == np.tril(seen)).all() and (np.diag(seen) == 1).all(), (
                    "a node sees itself, none behind it"
                )
                assert not batch.tree_mask[first:last, last - first :].any(), "a mask past the request's tokens"
                depths = seen.sum(axis=1, dtype=np.int64) - 1
            assert batch.positions[first:last].tolist() == (length - (last - first) + depths).tolist()
            used = -(-length // self.block_size)
            assert (batch.block_table[b, :used] >= 0).all() and (batch.block_table[b, :used] < self.num_blocks).all()
        slots = blocks.astype(np.int64) * self.block_size + places % self.block_size
        assert len(np.unique(slots)) == len(slots), "two tokens share a slot"
        if self.writable is not None:
            for block in np.unique(blocks).tolist():
                assert self.writable(block), f"block {block} is shared or cached and is being written"
