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
    limits, least = np.asarray(counts), np.asarray(worth, dtype=np.float32)
    likely = np.ones(total, dtype=np.float32)
    going = np.arange(total)
    for depth in range(most):
        best, probability = best_tokens(logits)
        if targets is not None:
            best = targets[best]
        likely[going] *= probability
        good = likely[going] >= least[going] if depth else np.ones(len(going), dtype=bool)
        taken = going[good]
        tokens[taken, depth], confidence[taken, depth] = best[good], probability[good]
        lengths[taken] = depth + 1
        kept = np.flatnonzero(good & (limits[going] > depth + 1))
        if not len(kept):
            break
        going = going[kept]
        at = positions[going] + depth
        batch = StepBatch(
            input_ids=best[kept],
            positions=at,
            query_start=np.arange(len(kept) + 1, dtype=np.int32),
            sequence_lengths=(at + 1).astype(np.int32),
            block_table=rows.gather(table_rows[going], int(at.max()) + 1),
            logit_indices=np.arange(len(kept), dtype=np.int64),
        )
        logits = next_pass(kept, batch)
    return [
        Draft(tokens[index, :length], source, confidence=confidence[index, :length])
        for index, length in enumerate(lengths.tolist())
    ]
