"""The step's arrays, assembled from tables that are kept up to date as things happen.

Every running sequence owns a row of :class:`BatchTable`: its block table, computed length and next
token. A block is written into the row when it is allocated, so a decode step gathers rows by
index and runs no Python per request. Only prefill chunks (few a step) are copied one by one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.executors.base import StepBatch
from runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from runtime.speculation.draft import Ancestry, Draft

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
        self.block_table[sequence.row, len(sequence.blocks)] = block
        sequence.blocks.append(block)
        self._used[sequence.row] = len(sequence.blocks)

    def replace_block(self, sequence: Sequence, number: int, block: int) -> None:
        """Put ``block`` in place of the sequence's block ``number``."""
        sequence.blocks[number] = block
        self.block_table[sequence.row, number] = block

    def drop_blocks(self, sequence: Sequence, keep: int) -> list[int]:
        """Take the blocks past the first ``keep`` out of the sequence and its row; they are the caller's to release."""
        dropped = sequence.blocks[keep:]
        if dropped:
            self.block_table[sequence.row, keep : len(sequence.blocks)] = -1
            del sequence.blocks[keep:]
            self._used[sequence.row] = keep
        return dropped

    def assemble(
        self,
        decodes: Seq[Sequence],
        chunks: Seq[Chunk],
        copies: Seq[tuple[int, int]],
        block_size: int,
        drafts: Seq[Draft | None] = (),
    ) -> StepBatch:
        """The executor's arrays: decoding sequences first, then the prefill chunks.

        A decode has one token, and its draft's behind it where it has one (``drafts`` is empty or one a decode);
        of all of these the logits are wanted. A tree mask is made when one of the drafts is a tree.
        """
        count = len(decodes)
        rows = np.fromiter((s.row for s in decodes), dtype=np.int64, count=count)
        computed = self.computed[rows]
        lens = np.fromiter((0 if d is None else len(d) for d in drafts), dtype=np.int32, count=len(drafts))
        drafted = bool(lens.any())
        if not chunks and not drafted:
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
        if drafted:
            queries[:count] += lens
        queries[count:] = [c.count for c in chunks]
        ends = np.array([c.start + c.count for c in chunks], dtype=np.int64)
        lengths = np.concatenate([computed + queries[:count], ends])
        query_start = np.concatenate([_ZERO, np.cumsum(queries, dtype=np.int32)])
        ids, places, mask = self.next_token[rows], computed, None
        if drafted:
            trees = _trees(drafts)
            ids, places = _behind(ids, computed, query_start[: count + 1], queries[:count], drafts, trees)
            mask = _tree_mask(queries, query_start, trees) if trees else None
        tokens = [ids, *(c.sequence.tokens[c.start : c.start + c.count] for c in chunks)]
        positions = [places, *(np.arange(c.start, c.start + c.count, dtype=np.int64) for c in chunks)]
        last = np.array([c.last for c in chunks], dtype=bool)
        finished = query_start[count + 1 :][last].astype(np.int64) - 1
        return StepBatch(
            input_ids=np.concatenate(tokens),
            positions=np.concatenate(positions),
            query_start=query_start,
            sequence_lengths=lengths.astype(np.int32),
            block_table=self._gather(all_rows, lengths, block_size),
            logit_indices=np.concatenate([np.arange(query_start[count], dtype=np.int64), finished]),
            block_copies=copies,
            tree_mask=mask,
        )

    def _gather(
        self, rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], block_size: int
    ) -> npt.NDArray[np.int32]:
        # Only the blocks up to the longest context of the step: attention reads no further.
        width = -(-int(lengths.max()) // block_size) if len(lengths) else 0
        return np.ascontiguousarray(self.block_table[:, :width][rows])


def _trees(drafts: Seq[Draft | None]) -> dict[int, Ancestry]:
    """The trees among the drafts, by their place."""
    found = {at: draft.ancestry() for at, draft in enumerate(drafts) if draft is not None}
    return {at: ancestry for at, ancestry in found.items() if ancestry is not None}


def _behind(
    roots: npt.NDArray[np.int64],
    computed: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int32],
    queries: npt.NDArray[np.int32],
    drafts: Seq[Draft | None],
    trees: dict[int, Ancestry],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ids and positions of every decode's root and the draft behind it; of a tree's node the depth counts."""
    ids = np.empty(starts[-1], dtype=np.int64)
    behind = np.ones(len(ids), dtype=bool)
    behind[starts[:-1]] = False
    ids[starts[:-1]] = roots
    ids[behind] = np.concatenate([d.tokens for d in drafts if d is not None])
    positions: npt.NDArray[np.int64]
    if len(trees) == len(roots):
        positions = np.concatenate([tree.depths for tree in trees.values()])
        positions += np.repeat(computed, queries)
        return ids, positions
    positions = np.arange(len(ids), dtype=np.int64) + np.repeat(computed - starts[:-1], queries)
    for at, tree in trees.items():
        first = int(starts[at])
        positions[first : first + len(tree.depths)] = computed[at] + tree.depths
    return ids, positions


def _tree_mask(
    queries: npt.NDArray[np.int32], query_start: npt.NDArray[np.int32], trees: dict[int, Ancestry]
) -> npt.NDArray[np.uint8]:
    """uint8 [T, W], W the most new tokens of a request: a tree's rows see their ancestors, all others are causal."""
    shape = int(query_start[-1]), int(queries.max())
    if len(trees) == len(queries):
        mask = np.zeros(shape, dtype=np.uint8)
    else:
        places = np.arange(shape[0]) - np.repeat(query_start[:-1], queries)
        mask = (np.arange(shape[1])[None, :] <= places[:, None]).astype(np.uint8)
    starts = query_start.tolist()
    for at, tree in trees.items():
        first, size = starts[at], len(tree.sees)
        mask[first : first + size, size:] = 0
        mask[first : first + size, :size] = tree.sees
    return mask
