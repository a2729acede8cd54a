"""The reference head over a paged cache in plain torch: what a real draft executor does, slowly.

Slots that nobody wrote hold NaN, so a row that reads one is seen; what a call returned becomes NaN with the next call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.executors.batch_check import check_batch
from runtime.speculation.reference import Eagle3Reference, rotated, rotation
from tests.trtforge.drafting.checkpoints import VOCAB, WIDTH, Spec, write

LIMITS = ExecutorLimits(max_batch_size=8, max_num_tokens=64, max_seq_len=128, max_input_len=120)


@dataclass(frozen=True)
class PagedReference(Eagle3Reference):
    """One call of the head; keys and values of each layer [N, S, K, E] are kept by the executor."""

    keys: Mapping[str, Tensor]
    values: Mapping[str, Tensor]
    batch: StepBatch

    def _attention(self, name: str, values: Tensor, positions: Tensor) -> Tensor:
        head, batch, length = self.head, self.batch, values.shape[0]
        queries, keys, content = (
            self._linear(f"{name}.{part}_proj", values).view(length, -1, head.head_size) for part in "qkv"
        )
        if head.qk_norm:
            queries, keys = self._norm(f"{name}.q_norm", queries), self._norm(f"{name}.k_norm", keys)
        cos, sin = rotation(head.rope, head.head_size, positions)
        queries, keys = (rotated(part, cos, sin) for part in (queries, keys))
        size = self.keys[name].shape[1]
        slots = []
        for b, (begin, end) in enumerate(zip(batch.query_start[:-1], batch.query_start[1:], strict=True)):
            for row in range(begin, end):
                position = int(batch.sequence_lengths[b]) - (int(end) - row)
                block = int(batch.block_table[b, position // size])
                assert block >= 0, "a row without a block"
                slots.append((block, position % size))
                self.keys[name][slots[-1]], self.values[name][slots[-1]] = keys[row], content[row]
        assert len(set(slots)) == len(slots), "two new tokens share a slot"
        rows = []
        for b, (begin, end) in enumerate(zip(batch.query_start[:-1], batch.query_start[1:], strict=True)):
            context, new = int(batch.sequence_lengths[b]), int(end - begin)
            past = context - new
            table = batch.block_table[b, : -(-context // size)].tolist()
            known = self.keys[name][table].flatten(0, 1)[:context]
            read = self.values[name][table].flatten(0, 1)[:context]
            groups = head.heads // head.kv_heads
            known, read = known.repeat_interleave(groups, 1), read.repeat_interleave(groups, 1)
            for i, row in enumerate(range(begin, end)):
                sees = torch.ones(context, dtype=torch.bool)
                mask = None if batch.tree_mask is None else torch.from_numpy(batch.tree_mask[row, :new]).bool()
                sees[past:] = (torch.arange(new) <= i) if mask is None else mask
                scores = torch.einsum("hd,khd->hk", queries[row], known[sees]) / math.sqrt(head.head_size)
                rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), read[sees]).reshape(-1))
        return self._linear(f"{name}.o_proj", torch.stack(rows))


class PagedHead:
    """A :class:`~runtime.executors.base.DraftExecutor` around the reference."""

    def __init__(
        self, reference: Eagle3Reference, *, num_blocks: int, block_size: int, limits: ExecutorLimits = LIMITS
    ) -> None:
        head = reference.head
        self.reference, self.num_blocks, self.block_size, self.limits = reference, num_blocks, block_size, limits
        self.draft_vocab_size, self.hidden_size = head.draft_vocab_size, head.hidden_size
        self.tap_width = head.tap_count * head.target_hidden_size
        self.targets = reference.targets.numpy().astype(np.int64)
        names = [f"layers.{layer}.self_attn" for layer in range(head.layers)]
        shape = (num_blocks, block_size, head.kv_heads, head.head_size)
        self.keys = {name: torch.full(shape, torch.nan) for name in names}
        self.values = {name: torch.full(shape, torch.nan) for name in names}
        self.batches: list[StepBatch] = []
        self.closed = False
        self._given: tuple[Tensor, ...] = ()

    def execute(
        self, batch: StepBatch, *, taps: Tensor | None = None, feedback: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        check_batch(batch, self.limits, self.reference.head.vocab_size, tree=True)
        if (taps is None) == (feedback is None):
            raise ValueError("rows come from taps or from states")
        paged = PagedReference(
            self.reference.head, self.reference.tensors, self.reference.targets, self.keys, self.values, batch
        )
        states = paged.join(taps) if taps is not None else feedback
        assert states is not None and states.shape == (batch.num_tokens, self.hidden_size)
        logits, fed = paged.step(torch.from_numpy(batch.input_ids), states, torch.from_numpy(batch.positions))
        for tensor in self._given:
            tensor.fill_(torch.nan)
        self._given = (logits[torch.from_numpy(batch.logit_indices)].clone(), fed.clone())
        self.batches.append(batch)
        return self._given

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for pool in (*self.keys.values(), *self.values.values()):
            for source, destination in pairs:
                pool[destination] = pool[source]

    def describe(self) -> dict[str, Any]:
        return {"kernels": "reference"}

    def close(self) -> None:
        self.closed = True


def head_of(folder: Path, **flags: Any) -> Eagle3Reference:
    """A tiny head with the target's tables."""
    made = torch.Generator().manual_seed(5)
    embedding = torch.randn(VOCAB, WIDTH, generator=made)
    return Eagle3Reference.open(write(folder, Spec("specforge", **flags)), embedding=embedding)
