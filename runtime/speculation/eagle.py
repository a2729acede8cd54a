"""Drafts by an EAGLE-3 head: chains and trees, batched over sequences, from the target's tapped states.

A round: the rows whose states have become true since the last one run in one ragged pass, joined from taps; the logits
of each sequence's last row give its first draft token, and every further token (or level of a tree) is one more pass
with the head's own states fed back. What such passes write lies behind the true rows and is overwritten by them.

States that nobody drafts from wait as copies (:class:`PendingTaps`); rows of prompts join the next first pass, so that
sequences that will share their blocks find them true, and many waiting rows of one sequence run by themselves as far as
drafts are asked for at all (:class:`UnaskedRows`): where they are not, a sequence grows cold in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.executors.base import DraftExecutor, StepBatch
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.chains import greedy_chains
from runtime.speculation.draft import ORDINARY_ROWS, Ask, Computed, Draft, TapReader
from runtime.speculation.draft_rows import DraftRows, Span, Track
from runtime.speculation.ops import picked
from runtime.speculation.pending_taps import PendingTaps
from runtime.speculation.trees import Roots, TreeDrafting
from runtime.speculation.unasked_rows import UnaskedRows

if TYPE_CHECKING:
    import torch

#: waiting rows of one sequence that are worth a pass of their own
FLUSH_ROWS = 64
#: waiting rows of one sequence, and of all that have left, beyond which they are given up where none may be computed
WAITING_ROWS = 256
#: rows of taps that are copied at once
PIECE = 512


class EagleDrafter:
    """Drafts of one engine's sequences.

    Args:
        executor: the head, with pools under the target's block numbers; closed with the drafter.
        tree: how trees are shaped; None: asks for trees get chains.
    """

    name = "eagle3"
    ordinary = True

    def __init__(self, executor: DraftExecutor, *, tree: TreeDrafting | None = None) -> None:
        self._executor = executor
        self._rows = DraftRows(executor.num_blocks, executor.block_size, executor.limits)
        self._pending = PendingTaps(executor.tap_width)
        self._left: list[Track] = []
        self._unasked = UnaskedRows()
        self._tree = tree

    @property
    def executor(self) -> DraftExecutor:
        """What computes the drafts."""
        return self._executor

    # -- the engine's calls ------------------------------------------------------------------------------

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        """Drafts where the sequence's rows are true; none of at most 0 tokens, of unknown and of cold sequences."""
        drafts: list[Draft | None] = [None] * len(asks)
        wanted: list[tuple[int, Track]] = []
        for at, ask in enumerate(asks):
            track = self._rows.asked(ask.sequence) if ask.count > 0 else None
            if track is not None and self._collects(track):
                wanted.append((at, track))
        if not wanted:
            return drafts
        self._unasked.earn(drafts=len(wanted))
        ready, logits, states = self._first_pass(wanted)
        if not ready:
            return drafts
        trees = [index for index, (at, _) in enumerate(ready) if asks[at].tree and self._tree is not None]
        for places, draft in (
            (sorted(set(range(len(ready))) - set(trees)), self._draft_chains),
            (trees, self._draft_trees),
        ):
            if not places:
                continue
            served = [ready[place] for place in places]
            their_asks, tracks = [asks[at] for at, _ in served], [track for _, track in served]
            if len(places) < len(ready):
                made = draft(their_asks, tracks, logits[places], states[places])
            else:
                made = draft(their_asks, tracks, logits, states)
            for (at, _), found in zip(served, made, strict=True):
                drafts[at] = found
        return drafts

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        """Copy the states of the new positions; rows that have become many are computed at once, or given up."""
        if taps is None:
            raise ValueError("an EAGLE head drafts from tapped states, and this step tapped none")
        short: list[tuple[Track, npt.NDArray[np.int64]]] = []
        for item in computed:
            rows, sequence = item.rows, item.sequence
            if not len(rows):
                continue
            if self._rows.begins(sequence, item.start):
                self.leave(sequence)
                self._rows.enter(sequence, item.start)
            track = self._rows.seen(sequence, len(rows))
            track.speculates = item.speculates
            if not item.speculates:
                # prompts only: their blocks are those that others will share
                rows = rows[: max(0, sequence.prompt_length - item.start)]
            if track.cold or not len(rows):
                continue
            if track.pending_start + len(track.pending) != item.start:
                self._cut(track, 0)
                track.pending_start = item.start
            if len(rows) < FLUSH_ROWS:
                short.append((track, rows))
                continue
            for begin in range(0, len(rows), PIECE):
                track.pending += self._pending.put(taps(rows[begin : begin + PIECE]))
                self._flush([track])
        if short:
            numbers = self._pending.put(taps(np.concatenate([rows for _, rows in short])))
            begin = 0
            for track, rows in short:
                track.pending += numbers[begin : begin + len(rows)]
                begin += len(rows)
            self._unasked.earn(tokens=len(numbers))
        if self._unasked:
            many = [track for track, _ in short if len(track.pending) > FLUSH_ROWS]
            if many or self._waiting_left() > FLUSH_ROWS:
                self._flush(many)
        else:
            self._give_up([track for track, _ in short if len(track.pending) > WAITING_ROWS])

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        """Children get copies of the parent's waiting states."""
        track = self._rows.tracks.get(parent)
        if track is None:
            return
        for child in children:
            made = self._rows.fork(track, child)
            if track.pending:
                made.pending = self._pending.put(self._pending.get(track.pending))

    def leave(self, sequence: TokenSequence) -> None:
        """Waiting rows of full blocks are still computed: the next turn of a conversation begins on them."""
        track = self._rows.leave(sequence)
        if track is None:
            return
        self._cut(track, max(0, track.computed - track.pending_start))
        if track.pending:
            self._left.append(track)
        else:
            self._rows.drop(track)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy on write in the head's pools."""
        if pairs:
            self._executor.copy_blocks(pairs)
            self._rows.copied(pairs)

    def ready(self, sequence: TokenSequence) -> bool:
        """Whether the sequence's states are known here; what it shares with others may still be missing."""
        track = self._rows.tracks.get(sequence)
        return track is not None and self._collects(track)

    def describe(self) -> dict[str, Any]:
        """The head, and the trees that it can draft."""
        return {
            "name": self.name,
            "executor": self._executor.describe(),
            "tree": None if self._tree is None else self._tree.describe(),
        }

    def close(self) -> None:
        """Release weights and pools."""
        self._executor.close()

    # -- rows ----------------------------------------------------------------------------------------------

    def _collects(self, track: Track) -> bool:
        """Whether the states of all positions from the first missing row on wait here."""
        return track.speculates and not track.cold and track.pending_end == track.computed

    def _first_pass(
        self, wanted: Sequence[tuple[int, Track]]
    ) -> tuple[list[tuple[int, Track]], torch.Tensor, torch.Tensor]:
        """Compute what is missing before the drafts.

        Returns:
            Who can be drafted for, and per one of them logits [A, Vd] and state [A, H] of the last true row.
        """
        tracks = [track for _, track in wanted]
        batch = self._rows.steady(tracks, ahead=1) if self._alone(tracks) else None
        if batch is not None:
            return list(wanted), *self._run_steady(tracks, batch)
        # who waits for earlier positions first: others may share the blocks that it will fill
        order = sorted(tracks, key=lambda track: track.pending_start)
        spans = [Span(track, track.pending_start, track.computed, logits=True) for track in order]
        done, logits, states, rows = self._feed(spans)
        self.ordinary = rows <= ORDINARY_ROWS * len(tracks)
        place = {span.track: number for number, span in enumerate(done)}
        ready = [item for item in wanted if item[1] in place]
        places = [place[track] for _, track in ready]
        if places != list(range(len(places))):
            logits, states = logits[places], states[places]
        return ready, logits, states

    def _alone(self, tracks: list[Track]) -> bool:
        """Whether rows of nobody else join the pass, as long as these need none of others."""
        if self._left:
            return False
        if len(self._rows.tracks) == len(tracks):
            return True
        asked = set(tracks)
        return not any(
            track.pending_start < track.sequence.prompt_length or len(track.pending) > FLUSH_ROWS
            for track in self._rows.tracks.values()
            if track.pending and track not in asked
        )

    def _run_steady(self, tracks: list[Track], batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over all that waits of these tracks; logits and states of their last rows."""
        numbers: list[int] = []
        for track in tracks:
            numbers += track.pending
        self.ordinary = len(numbers) <= ORDINARY_ROWS * len(tracks)
        logits, states = self._executor.execute(batch, taps=self._pending.get(numbers))
        self._rows.wrote(tracks)
        self._pending.release(numbers)
        for track in tracks:
            track.pending.clear()
            track.pending_start = track.computed
        return logits, picked(states, batch.logit_indices)

    def _company(self, asked: set[Track]) -> list[Span]:
        """Rows of others that join a pass: of sequences that have left, of prompts, and where many wait."""
        rows = self._rows
        for track in asked:
            rows.learn(track, track.computed)
        # a sequence on shared blocks may wait for what their first owner has not computed yet
        stuck = any(track.rows < track.pending_start for track in asked)
        for track in [track for track in self._left if not rows.holds(track)]:
            self._drop_left(track)
        joining = [self._span_of(track) for track in self._left] if stuck or self._unasked else []
        for track in rows.tracks.values():
            if not track.pending or track in asked:
                continue
            span = self._span_of(track)
            of_prompt = min(span.end, track.sequence.prompt_length)
            if stuck or (self._unasked and (span.begin < of_prompt or span.end - span.begin > FLUSH_ROWS)):
                joining.append(span)
            elif span.begin < of_prompt:
                joining.append(Span(track, span.begin, of_prompt))
        return [span for span in joining if rows.holds(span.track)]

    def _span_of(self, track: Track) -> Span:
        """What can be computed of a sequence that is not asked for.

        Row ``computed - 1`` hangs on a token that samples of one prompt do not share, while they may still share the
        block; those that have left keep full blocks only, which nobody can have of his own.
        """
        return Span(track, track.pending_start, min(track.pending_end, track.computed - (not track.gone)))

    def _flush(self, tracks: Sequence[Track]) -> None:
        """Compute waiting rows though nobody drafts."""
        self._feed([self._span_of(track) for track in tracks])
        for track in tracks:
            if track.rows < track.pending_start:
                # nobody is left who could compute the rows before its own
                self._cut(track, 0)
                track.cold = True

    def _give_up(self, tracks: Sequence[Track]) -> None:
        """Rows that wait for nobody are not computed any more: of these sequences, and of those that left first."""
        for track in tracks:
            self._cut(track, 0)
            track.cold = True
        while self._waiting_left() > WAITING_ROWS:
            self._drop_left(self._left[0])

    def _waiting_left(self) -> int:
        """Rows of sequences that have left."""
        return sum(len(track.pending) for track in self._left)

    def _drop_left(self, track: Track) -> None:
        self._left.remove(track)
        self._cut(track, 0)
        self._rows.drop(track)

    def _feed(self, wanted: list[Span]) -> tuple[list[Span], torch.Tensor, torch.Tensor, int]:
        """Compute what is missing of the spans, and of others that join them.

        Returns:
            The spans whose logits are wanted and could be had, these logits [A, Vd] and their rows' states [A, H], and
            how many rows were computed.
        """
        spans = [*self._company({span.track for span in wanted}), *wanted]
        cut = [span for span in self._rows.spans(spans) if span is not None]
        self._unasked.spend(sum(_of_answer(span) for span in cut if not span.logits))
        logits, states = self._run(list(self._rows.passes(cut)))
        for span in spans:
            self._trim(span.track)
        for track in [span.track for span in spans if span.track.gone]:
            self._drop_left(track)
        rows = sum(span.end - span.begin for span in cut)
        return [span for span in cut if span.logits], logits, states, rows

    def _run(self, parts: list[list[Span]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Joined rows, pass after pass; logits and states of the rows whose logits are wanted, in order."""
        import torch

        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for part in parts:
            batch = self._rows.pack(part, ahead=1)
            numbers: list[int] = []
            for span in part:
                first = span.track.pending_start
                numbers += span.track.pending[span.begin - first : span.end - first]
            logits, states = self._executor.execute(batch, taps=self._pending.get(numbers))
            for span in part:
                self._rows.written(span)
            if len(batch.logit_indices):
                # the next pass takes the executor's memory
                kept = logits if part is parts[-1] else logits.clone()
                found.append((kept, picked(states, batch.logit_indices)))
        if len(found) == 1:
            return found[0]
        if not found:
            return torch.empty(0, self._executor.draft_vocab_size), torch.empty(0, self._executor.hidden_size)
        return torch.cat([logits for logits, _ in found]), torch.cat([states for _, states in found])

    def _trim(self, track: Track) -> None:
        """Give back the states of rows that are true."""
        count = min(track.rows - track.pending_start, len(track.pending))
        if count > 0:
            self._pending.release(track.pending[:count])
            del track.pending[:count]
            track.pending_start += count

    def _cut(self, track: Track, count: int) -> None:
        """Keep the first ``count`` waiting states."""
        self._pending.release(track.pending[count:])
        del track.pending[count:]

    # -- drafts --------------------------------------------------------------------------------------------

    def _room(self, track: Track) -> int:
        """Slots of the sequence's blocks behind its true rows."""
        return min(len(track.blocks) * self._rows.block_size, self._rows.limits.max_seq_len) - track.computed

    def _draft_chains(
        self, asks: Sequence[Ask], tracks: Sequence[Track], logits: torch.Tensor, states: torch.Tensor
    ) -> list[Draft]:
        """Chains; ``states`` [n, H] of the rows of ``logits``, not the executor's memory."""
        last = states

        def next_pass(kept: npt.NDArray[np.int64], batch: StepBatch) -> torch.Tensor:
            nonlocal last
            # a copy in any case: the executor takes its memory again
            feedback = last.clone() if len(kept) == len(last) else picked(last, kept)
            found, last = self._executor.execute(batch, feedback=feedback)
            return found

        return greedy_chains(
            self._rows,
            np.array([track.row for track in tracks], dtype=np.int64),
            np.array([track.computed for track in tracks], dtype=np.int64),
            # the first token needs no slot
            [min(ask.count, self._room(track) + 1) for ask, track in zip(asks, tracks, strict=True)],
            [ask.worth for ask in asks],
            logits,
            next_pass,
            source=self.name,
            targets=self._executor.targets,
        )

    def _draft_trees(
        self, asks: Sequence[Ask], tracks: Sequence[Track], logits: torch.Tensor, states: torch.Tensor
    ) -> list[Draft | None]:
        """Trees; ``states`` [n, H] of the rows of ``logits``, not the executor's memory."""
        assert self._tree is not None
        roots = Roots(
            tokens=np.array([track.sequence.tokens[track.computed] for track in tracks], dtype=np.int32),
            positions=np.array([track.computed for track in tracks], dtype=np.int64),
            room=np.array([self._room(track) for track in tracks], dtype=np.int64),
            table=self._rows.table[np.array([track.row for track in tracks], dtype=np.int64)],
        )
        return self._tree.draft(self._executor, roots, [ask.count for ask in asks], logits, states)


def _of_answer(span: Span) -> int:
    """Rows behind the prompt, which is computed in any case."""
    return max(0, span.end - max(span.begin, span.track.sequence.prompt_length))
