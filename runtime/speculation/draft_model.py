"""Drafts by an ordinary small model with the target's vocabulary, over pools under the target's block numbers.

Row p of its cache is that of token p, so it needs nothing of the target and is never cold: rows that are missing, the
prompt's too, are computed when a draft is asked for. Rows of draft tokens that were accepted are true as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.executors.base import Executor, StepBatch
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.chains import greedy_chains
from runtime.speculation.draft import ORDINARY_ROWS, Ask, Computed, Draft, TapReader
from runtime.speculation.draft_rows import DraftRows, Span, Track

if TYPE_CHECKING:
    import torch


class DraftModelDrafter:
    """Drafts of one engine's sequences.

    Args:
        executor: the draft model, with pools under the target's block numbers; closed with the drafter.
        vocab_size: the target's; columns behind it (padding) are never drafted.
    """

    name = "draft_target"
    ordinary = True

    def __init__(self, executor: Executor, *, vocab_size: int) -> None:
        self._executor = executor
        self._vocab_size = vocab_size
        self._rows = DraftRows(executor.num_blocks, executor.block_size, executor.limits)
        #: tokens whose rows lie behind the true ones, since the last propose
        self._guessed: dict[Track, npt.NDArray[np.int64]] = {}

    @property
    def executor(self) -> Executor:
        """What computes the drafts."""
        return self._executor

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        """Drafts; none of at most 0 tokens and of sequences that nobody has told of."""
        drafts: list[Draft | None] = [None] * len(asks)
        wanted: dict[Track, int] = {}
        for at, ask in enumerate(asks):
            track = self._rows.asked(ask.sequence) if ask.count > 0 and self.ready(ask.sequence) else None
            if track is not None:
                track.rows = min(track.rows, track.computed)  # the root's logits are wanted
                if self._feedable(track):
                    wanted[track] = at
        # who has fewer rows first: others may share the blocks that it will fill
        spans = [
            Span(track, 0, track.sequence.length, logits=True) for track in sorted(wanted, key=lambda track: track.rows)
        ]
        cut = [span for span in self._rows.spans(spans) if span is not None]
        if not cut:
            return drafts
        self.ordinary = sum(span.end - span.begin for span in cut) <= ORDINARY_ROWS * len(cut)
        logits = self._run(cut)
        tracks = [span.track for span in cut]
        places = [wanted[track] for track in tracks]
        made = greedy_chains(
            self._rows,
            np.array([track.row for track in tracks], dtype=np.int64),
            np.array([track.sequence.length for track in tracks], dtype=np.int64),
            # the first token needs no slot but the root's
            [min(asks[at].count, self._room(track) + 1) for at, track in zip(places, tracks, strict=True)],
            [asks[at].worth for at in places],
            logits,
            lambda _, batch: self._logits(batch),
            source=self.name,
        )
        for at, track, draft in zip(places, tracks, made, strict=True):
            drafts[at] = draft
            self._guessed[track] = draft.tokens
        return drafts

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        """Count the rows of tokens that were accepted."""
        for item in computed:
            if not len(item.rows):
                continue
            if self._rows.begins(item.sequence, item.start):
                self.leave(item.sequence)
                self._rows.enter(item.sequence, item.start)
            track = self._rows.seen(item.sequence, len(item.rows))
            track.speculates = item.speculates
            guessed = self._guessed.pop(track, None)
            if guessed is None:
                continue
            # behind the root; a draft's last token has no row
            known = item.sequence.tokens[item.start + 1 : track.computed][: len(guessed) - 1]
            equal = guessed[: len(known)] == known
            track.rows = item.start + 1 + (len(known) if equal.all() else int(equal.argmin()))
            self._rows.written(Span(track, item.start, track.rows))

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        """Children know what the parent knows."""
        track = self._rows.tracks.get(parent)
        if track is not None:
            for child in children:
                self._rows.fork(track, child)

    def leave(self, sequence: TokenSequence) -> None:
        """Forget the sequence; its blocks keep their marks."""
        track = self._rows.leave(sequence)
        if track is not None:
            self._guessed.pop(track, None)
            self._rows.drop(track)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy on write in the model's pools."""
        if pairs:
            self._executor.copy_blocks(pairs)
            self._rows.copied(pairs)

    def ready(self, sequence: TokenSequence) -> bool:
        """Whether the sequence has been seen and has tokens that the model knows."""
        track = self._rows.tracks.get(sequence)
        return track is not None and track.speculates and not track.cold

    def describe(self) -> dict[str, Any]:
        """The model."""
        return {"name": self.name, "executor": self._executor.describe()}

    def close(self) -> None:
        """Release weights and pools."""
        self._executor.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _room(self, track: Track) -> int:
        """Slots of the sequence's blocks behind its root."""
        slots = min(len(track.blocks) * self._rows.block_size, self._rows.limits.max_seq_len)
        return slots - track.sequence.length

    def _feedable(self, track: Track) -> bool:
        """Whether the model has all of the tokens that are missing: its table may be smaller than the target's."""
        vocabulary, sequence = self._executor.vocab_size, track.sequence
        if vocabulary < self._vocab_size and int(sequence.tokens[track.rows : sequence.length].max()) >= vocabulary:
            track.cold = True
        return not track.cold

    def _run(self, spans: Sequence[Span]) -> torch.Tensor:
        """Missing rows, pass after pass; logits [n, V] of the spans' last rows."""
        import torch

        found: list[torch.Tensor] = []
        parts = list(self._rows.passes(spans))
        for part in parts:
            batch = self._rows.pack(part, ahead=0)
            logits = self._logits(batch)
            for span in part:
                self._rows.written(span)
            if len(batch.logit_indices):
                # the next pass takes the executor's memory
                found.append(logits if part is parts[-1] else logits.clone())
        return found[0] if len(found) == 1 else torch.cat(found)

    def _logits(self, batch: StepBatch) -> torch.Tensor:
        import torch

        logits = torch.as_tensor(self._executor.execute(batch))
        return logits[:, : self._vocab_size] if logits.shape[1] > self._vocab_size else logits
