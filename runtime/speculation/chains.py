"""Greedy chains, one pass a further token of those that go on; what an EAGLE head and a draft model have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.executors.base import StepBatch
from runtime.speculation.draft import Draft
from runtime.speculation.draft_rows import DraftRows
from runtime.speculation.ops import best_tokens

if TYPE_CHECKING:
    import torch

#: a pass of one row a chain: which of the last pass's chains go on (int64 [n]), and its batch → logits [n, Vd]
NextPass = Callable[[npt.NDArray[np.int64], StepBatch], "torch.Tensor"]


def greedy_chains(
    rows: DraftRows,
    table_rows: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    counts: Sequence[int],
    worth: Sequence[float],
    logits: torch.Tensor,
    next_pass: NextPass,
    *,
    source: str,
    targets: npt.NDArray[np.int64] | None = None,
) -> list[Draft]:
    """Draft ``counts`` tokens at most, one at least, for each of n sequences.

    Args:
        table_rows: int64 [n], rows of the block table.
        positions: int64 [n], where the row that carries the first draft token lies.
        worth: a chain ends before a token whose product of confidences is lower.
        logits: [n, Vd], those of the first tokens.
        targets: int64 [Vd], the target's token of each column; None: the same ids.
    """
    total, most = len(positions), max(counts)
    tokens = np.zeros((total, most), dtype=np.int64)
    confidence = np.zeros((total, most), dtype=np.float32)
    lengths = np.ones(total, dtype=np.int64)
    picky, alike = any(worth), min(counts) == most
    limits, least = np.asarray(counts), np.asarray(worth, dtype=np.float32)
    likely = np.ones(total, dtype=np.float32)
    going = everybody = np.arange(total)
    starts = np.arange(total + 1, dtype=np.int32)
    table = rows.gather(table_rows, int(positions.max()) + most)
    at = positions
    for depth in range(most):
        best, probability = best_tokens(logits)
        if targets is not None:
            best = targets[best]
        kept = everybody[: len(going)]
        if picky:
            likely[going] *= probability
            if depth:
                kept = np.flatnonzero(likely[going] >= least[going])
        taken = going if len(kept) == len(going) else going[kept]
        tokens[taken, depth], confidence[taken, depth] = best[kept], probability[kept]
        lengths[taken] = depth + 1
        if depth + 1 == most:
            break
        if not alike:
            kept = kept[limits[taken] > depth + 1]
        if not len(kept):
            break
        if len(kept) < len(going):
            going, at, table, best = going[kept], at[kept], table[kept], best[kept]
        batch = StepBatch(
            input_ids=best,
            positions=at,
            query_start=starts[: len(going) + 1],
            sequence_lengths=(at + 1).astype(np.int32),
            block_table=table,
            logit_indices=everybody[: len(going)],
        )
        logits = next_pass(kept, batch)
        at = at + 1
    return [
        Draft(tokens[index, :length], source, confidence=confidence[index, :length])
        for index, length in enumerate(lengths.tolist())
    ]
