"""The step's arrays, assembled from tables that are kept up to date as things happen.

Every running sequence owns a row of :class:`BatchTable`: its block table, computed length and next
token. A block is written into the row when it is allocated, so a decode step gathers rows by
index and runs no Python per request. Only prefill chunks (few a step) are copied one by one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.executors.base import StepBatch
from runtime.scheduler.sequence import Sequence

_ZERO = np.zeros(1, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of one sequence's outstanding tokens; ``last`` when it reaches the end and yields logits."""

    sequence: Sequence
    start: int
    count: int
    last: bool


class BatchTable:
    """Rows for R running sequences of up to M blocks.

    Args:
        rows: R.
        blocks: M, blocks of the longest sequence.
    """

    def __init__(self, rows: int, blocks: int) -> None:
        self.block_table = np.full((rows, blocks), -1, dtype=np.int32)
        self.computed = np.zeros(rows, dtype=np.int64)
        self.next_token = np.zeros(rows, dtype=np.int64)
        self._used = np.zeros(rows, dtype=np.int64)
        self._free = list(range(rows - 1, -1, -1))

    def enter(self, sequence: Sequence) -> None:
        """Give ``sequence`` a row that mirrors its blocks and lengths."""
        row = self._free.pop()
        sequence.row = row
        count = len(sequence.blocks)
        self.block_table[row, :count] = sequence.blocks
        self._used[row] = count
        self.computed[row] = sequence.computed
        self.next_token[row] = sequence.tokens[sequence.length - 1]

    def leave(self, sequence: Sequence) -> None:
        """Take the row back."""
        row = sequence.row
        self.block_table[row, : self._used[row]] = -1
        self._used[row] = 0
        sequence.row = -1
        self._free.append(row)

    def add_block(self, sequence: Sequence, block: int) -> None:
        """Append ``block`` to the sequence and its row."""
        self.block_table[sequence.row, len(sequence.blocks)] = block
        sequence.blocks.append(block)
        self._used[sequence.row] = len(sequence.blocks)

    def replace_block(self, sequence: Sequence, number: int, block: int) -> None:
        """Put ``block`` in place of the sequence's block ``number``."""
        sequence.blocks[number] = block
        self.block_table[sequence.row, number] = block

    def assemble(
        self, decodes: Seq[Sequence], chunks: Seq[Chunk], copies: Seq[tuple[int, int]], block_size: int
    ) -> StepBatch:
        """The executor's arrays: decoding sequences first (one token each), then the prefill chunks."""
        count = len(decodes)
        rows = np.fromiter((s.row for s in decodes), dtype=np.int64, count=count)
        computed = self.computed[rows]
        if not chunks:
            lengths = computed + 1
            return StepBatch(
                input_ids=self.next_token[rows],
                positions=computed,
                query_start=np.arange(count + 1, dtype=np.int32),
                sequence_lengths=lengths.astype(np.int32),
                block_table=self._gather(rows, lengths, block_size),
                logit_indices=np.arange(count, dtype=np.int64),
                block_copies=copies,
            )
        all_rows = np.concatenate([rows, np.array([c.sequence.row for c in chunks], dtype=np.int64)])
        queries = np.ones(len(all_rows), dtype=np.int32)
        queries[count:] = [c.count for c in chunks]
        ends = np.array([c.start + c.count for c in chunks], dtype=np.int64)
        lengths = np.concatenate([computed + 1, ends])
        query_start = np.concatenate([_ZERO, np.cumsum(queries, dtype=np.int32)])
        tokens = [self.next_token[rows], *(c.sequence.tokens[c.start : c.start + c.count] for c in chunks)]
        positions = [computed, *(np.arange(c.start, c.start + c.count, dtype=np.int64) for c in chunks)]
        wanted = np.ones(len(all_rows), dtype=bool)
        wanted[count:] = [c.last for c in chunks]
        return StepBatch(
            input_ids=np.concatenate(tokens),
            positions=np.concatenate(positions),
            query_start=query_start,
            sequence_lengths=lengths.astype(np.int32),
            block_table=self._gather(all_rows, lengths, block_size),
            logit_indices=(query_start[1:][wanted] - 1).astype(np.int64),
            block_copies=copies,
        )

    def _gather(
        self, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], block_size: int
    ) -> npt.NDArray[np.int32]:
        # Only the blocks up to the longest context of the step: attention reads no further.
        width = -(-int(lengths.max()) // block_size) if len(lengths) else 0
        return np.ascontiguousarray(self.block_table[:, :width][rows])
