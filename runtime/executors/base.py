"""What a scheduler needs from whatever computes logits.

Policy: an executor owns weights and KV pools and nothing else. It never decides what runs: block
numbers, order and sizes of a step come in with :class:`StepBatch`. A batch that breaks the
executor's limits is a bug of the caller and raises ``ValueError``; an engine directory that cannot be
loaded is a user's problem and raises :class:`~trtforge.ground.errors.ForgeError`.

This module imports numpy only; torch arrives with an executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step: the new tokens of B requests, packed along one axis of T tokens.

    Attributes:
        input_ids: int64 [T], token ids.
        positions: int64 [T], position of each token in its request.
        query_start: int32 [B+1]; request b owns tokens ``query_start[b]:query_start[b+1]``.
        sequence_lengths: int32 [B], context length including this step's tokens.
        block_table: int32 [B, M], pool blocks of each request in order; unused entries are -1.
        logit_indices: int64 [L], the tokens whose logits are wanted (may be empty).
        block_copies: (source, destination) pool blocks copied in every layer before the step runs
            (copy on write).
        tree_mask: uint8 [T, W] or None; visibility among a request's new tokens when verifying drafts.
    """

    input_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    query_start: npt.NDArray[np.int32]
    sequence_lengths: npt.NDArray[np.int32]
    block_table: npt.NDArray[np.int32]
    logit_indices: npt.NDArray[np.int64]
    block_copies: Sequence[tuple[int, int]] = ()
    tree_mask: npt.NDArray[np.uint8] | None = None

    @property
    def num_tokens(self) -> int:
        """T, the tokens of the step."""
        return int(self.input_ids.shape[0])

    @property
    def num_requests(self) -> int:
        """B, the requests of the step."""
        return int(self.sequence_lengths.shape[0])


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Capacity that a scheduler plans with.

    Attributes:
        max_batch_size: most requests in one step (B).
        max_num_tokens: most tokens in one step (T).
        max_seq_len: longest context of a request, prompt and output together.
        max_input_len: longest prompt.
        max_logit_rows: most rows of logits in one step; None: as many as tokens.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_input_len: int
    max_logit_rows: int | None = None


@dataclass(slots=True)
class StepProfile:
    """Where the time of executed steps went, in seconds, by part; filled when profiling is on."""

    steps: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds


@runtime_checkable
class Executor(Protocol):
    """Computes logits for a step over paged KV pools that it owns."""

    @property
    def num_blocks(self) -> int:
        """N, blocks of each layer's pool; block numbers of a batch are 0 … N-1."""

    @property
    def block_size(self) -> int:
        """S, token slots in a block."""

    @property
    def vocab_size(self) -> int:
        """V, columns of the logits."""

    @property
    def limits(self) -> ExecutorLimits:
        """What one step and one request may ask for."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation unless the request says otherwise."""

    def execute(self, batch: StepBatch) -> torch.Tensor | npt.NDArray[np.float32]:
        """Run one step and return logits float32 [L, V].

        The result is valid until the next ``execute`` (it may be a view of a reused buffer). Logits may
        be changed in place by the caller.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree.
        """

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pool blocks (source, destination) in every layer."""

    def move_rows(
        self,
        block_table: npt.NDArray[np.int32],
        base_positions: npt.NDArray[np.int32],
        path: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
    ) -> None:
        """Move keys and values of a tree's accepted nodes to contiguous positions in every layer (PagedKVMove).

        Args:
            block_table: int32 [B, M], pool blocks of each request.
            base_positions: int32 [B], position of the tree's node 0.
            path: int32 [B, G], the accepted nodes from node 0 on, rising; what lay at base + path[i] goes to base + i.
            lengths: int32 [B], nodes on each path.
        """

    def close(self) -> None:
        """Release weights and pools; nothing may be executed afterwards. May be repeated."""

    def describe(self) -> dict[str, Any]:
        """What runs: device, kernels, per linear stored and executed representation, bytes (JSON-able)."""


@runtime_checkable
class DraftExecutor(Protocol):
    """Computes an EAGLE-3 head over pools that lie under its target's block numbers.

    Row p of a sequence joins the state of position p with token p + 1, and lies in slot p of the sequence's blocks.
    ``input_ids`` are the target's; ``positions`` turn the keys, slots follow from ``sequence_lengths``.
    """

    @property
    def num_blocks(self) -> int:
        """N, as the target's."""

    @property
    def block_size(self) -> int:
        """S, as the target's."""

    @property
    def draft_vocab_size(self) -> int:
        """Vd, columns of the logits."""

    @property
    def hidden_size(self) -> int:
        """H, the width of what is fed back."""

    @property
    def tap_width(self) -> int:
        """m·Ht, the width of the target's tapped states side by side."""

    @property
    def targets(self) -> npt.NDArray[np.int64] | None:
        """int64 [Vd], the target's token of each draft token; None: the same ids."""

    @property
    def limits(self) -> ExecutorLimits:
        """What one step and one request may ask for."""

    def execute(
        self, batch: StepBatch, *, taps: torch.Tensor | None = None, feedback: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pass whose rows all come from ``taps`` [T, m·Ht] or all from ``feedback`` [T, H].

        Returns:
            Logits float32 [L, Vd] of ``logit_indices`` (L may be 0) and the states [T, H] to feed back; both valid
            until the next call.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree, or not exactly one source is given.
        """

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pool blocks (source, destination) in every layer."""

    def close(self) -> None:
        """Release weights and pools; nothing may be executed afterwards. May be repeated."""

    def describe(self) -> dict[str, Any]:
        """What runs (JSON-able)."""
