"""Which rows of a drafter's cache are true, and the batches that make more of them so.

A drafter's pools lie under the target's block numbers, so a row of its cache has a block and a slot. *True* is a row
that a computation over the sequence's own tokens, from the first on, would give again. Policy:

* A block whose slot 0 the target computes is another block from then on: nothing in it is true, and its *version*
  rises. So no mark outlives its contents, whoever got the block.
* A sequence knows its own true rows; of blocks that it shares it learns by the block's mark (``true_rows``: how many
  of its first slots hold true rows).
* A full block's last row may have been joined with another sequence's next token (EAGLE's rows are one token ahead):
  who shares the block takes it as it is. Drafts may differ by that, answers cannot. It is never written again.
* Two sequences never write one slot in one pass: who comes second begins behind what the first one writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.scheduler.sequence import Sequence as TokenSequence


@dataclass(slots=True, eq=False)
class Track:
    """What a drafter knows of one sequence.

    Attributes:
        row: of :attr:`DraftRows.table`.
        rows: the first so many positions have true rows.
        computed: positions that the target has computed, as last seen.
        preemptions: the sequence's count when last seen: its blocks are others after one.
        blocks: the sequence's blocks as last seen, ``versions`` theirs at that time.
        pending: where the states of positions ``pending_start``… wait for their rows (:class:`PendingTaps`).
        speculates: whether the request lets it be drafted for.
        cold: rows are missing that cannot be computed any more.
        gone: the sequence has left, or has other blocks by now.
    """

    sequence: TokenSequence
    row: int
    rows: int = 0
    computed: int = 0
    preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    pending_start: int = 0
    speculates: bool = True
    cold: bool = False
    gone: bool = False

    @property
    def pending_end(self) -> int:
        """The first position behind the pending ones."""
        return self.pending_start + len(self.pending)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``begin`` … ``end - 1`` of a sequence, to be computed; ``logits``: those of the last are wanted."""

    track: Track
    begin: int
    end: int
    logits: bool = False


class DraftRows:
    """The books of one drafter.

    Args:
        num_blocks: N of the shared block numbers.
        block_size: S.
        limits: of the drafter's executor.
    """

    def __init__(self, num_blocks: int, block_size: int, limits: ExecutorLimits) -> None:
        self.block_size = block_size
        self.limits = limits
        self.true_rows = [0] * num_blocks
        self.versions = [0] * num_blocks
        self.tracks: dict[TokenSequence, Track] = {}
        width = -(-limits.max_seq_len // block_size)
        #: int32 [R, M], the blocks of each track by its row; -1 behind them
        self.table = np.full((max(1, limits.max_batch_size), width), -1, dtype=np.int32)
        self._free = list(range(len(self.table) - 1, -1, -1))

    # -- what happens to sequences ---------------------------------------------------------------------

    def begins(self, sequence: TokenSequence, start: int) -> bool:
        """Whether a sequence that computes from ``start`` on is new here, or new in its blocks after a preemption."""
        track = self.tracks.get(sequence)
        return track is None or track.computed != start or track.preemptions != sequence.preemptions

    def enter(self, sequence: TokenSequence, start: int) -> Track:
        """Begin with no rows known; :meth:`learn` finds those of blocks that it shares."""
        track = Track(sequence, self._take_row(), computed=start, preemptions=sequence.preemptions)
        track.pending_start = start
        self.tracks[sequence] = track
        self._mirror(track, 0)
        return track

    def seen(self, sequence: TokenSequence, count: int) -> Track:
        """The target computed ``count`` more positions of a sequence that has entered."""
        track, size, true_rows = self.tracks[sequence], self.block_size, self.true_rows
        first, slot = divmod(track.computed, size)
        track.computed += count
        for block in sequence.blocks[first : (track.computed - 1) // size + 1]:
            if slot == 0:
                self.versions[block] += 1
                true_rows[block] = 0
            slot = 0
        self._mirror(track, first)
        return track

    def asked(self, sequence: TokenSequence) -> Track | None:
        """The track of a sequence that is to be drafted for, with the blocks that it has by now; None: not known."""
        track = self.tracks.get(sequence)
        if track is None or track.computed != sequence.computed or track.preemptions != sequence.preemptions:
            return None
        self._mirror(track, track.computed // self.block_size)
        return track

    def fork(self, parent: Track, child: TokenSequence) -> Track:
        """A sample that shares the parent's blocks and what is known of them; nothing pending."""
        track = Track(child, self._take_row(), parent.rows, parent.computed, child.preemptions)
        track.blocks, track.versions = list(parent.blocks), list(parent.versions)
        track.pending_start, track.speculates, track.cold = parent.pending_start, parent.speculates, parent.cold
        self.table[track.row] = self.table[parent.row]
        self.tracks[child] = track
        return track

    def copied(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Whole blocks were copied (source, destination): marks too, and the destination is another block now."""
        for source, destination in pairs:
            self.true_rows[destination] = self.true_rows[source]
            self.versions[destination] += 1

    def leave(self, sequence: TokenSequence) -> Track | None:
        """The sequence ended, or lost its blocks; its track keeps the full ones, until :meth:`drop`."""
        track = self.tracks.pop(sequence, None)
        if track is not None:
            track.gone = True
            # an answer may end inside of what was accepted
            track.computed = min(track.computed, sequence.length - 1) // self.block_size * self.block_size
            del track.blocks[track.computed // self.block_size :]
            del track.versions[len(track.blocks) :]
        return track

    def drop(self, track: Track) -> None:
        """Forget a track that has left."""
        self.table[track.row] = -1
        self._free.append(track.row)

    def holds(self, track: Track) -> bool:
        """Whether the track's rows still lie in blocks that nobody else has written to.

        A sequence that was preempted or has left may have lost them; one that runs may have got its own copy of one.
        """
        sequence, versions = track.sequence, self.versions
        if not track.gone and sequence.blocks and track.preemptions == sequence.preemptions:
            self._mirror(track, track.computed // self.block_size)
            return True
        return [versions[block] for block in track.blocks] == track.versions

    # -- rows --------------------------------------------------------------------------------------------

    def learn(self, track: Track, until: int) -> None:
        """Count rows that others wrote into shared blocks, up to position ``until``."""
        size, true_rows, blocks = self.block_size, self.true_rows, track.blocks
        while track.rows < until:
            number = track.rows // size
            known = number * size + true_rows[blocks[number]]
            if known <= track.rows:
                return
            track.rows = min(known, until)

    def written(self, span: Span) -> None:
        """The rows of a span are true now."""
        size, true_rows, blocks = self.block_size, self.true_rows, span.track.blocks
        for number in range(span.begin // size, (span.end - 1) // size + 1):
            rows = min(span.end - number * size, size)
            if true_rows[blocks[number]] < rows:
                true_rows[blocks[number]] = rows
        if span.track.rows < span.end:
            span.track.rows = span.end

    def spans(self, wanted: Sequence[Span]) -> list[Span | None]:
        """Cut spans to the rows that are missing, such that no slot is written twice.

        Args:
            wanted: ``begin`` is the first position that could be computed.

        Returns:
            A span each; None where nothing is left to compute or where rows before ``begin`` are missing. Rows that
            an earlier span will have written count as there.
        """
        size = self.block_size
        claimed: dict[int, int] = {}
        result: list[Span | None] = []
        for span in wanted:
            track, end, blocks = span.track, span.end, span.track.blocks
            self.learn(track, min(end, track.computed))
            begin = track.rows
            while claimed and begin < end:
                number = begin // size
                by_others = number * size + claimed.get(blocks[number], 0)
                if by_others <= begin:
                    break
                begin = min(by_others, end)
            if span.begin <= begin < end:
                result.append(Span(track, begin, end, span.logits))
                for number in range(begin // size, (end - 1) // size + 1):
                    claimed[blocks[number]] = min(end - number * size, size)  # behind what others claimed
            else:
                result.append(None)
        return result

    def steady(self, tracks: Sequence[Track], ahead: int) -> StepBatch | None:
        """The pass of every missing row of these tracks, where that takes no second look; None: it does.

        It takes none where the rows from each one's first pending one on are missing and its own to compute, in blocks
        that no other of them writes to, and all fit one pass.
        """
        size, true_rows = self.block_size, self.true_rows
        begins, ends, rows, tokens = [], [], [], []
        blocks: set[int] = set()
        spanned = total = 0
        for track in tracks:
            begin, end, mine = track.rows, track.computed, track.blocks
            if begin != track.pending_start or begin >= end:
                return None
            first = begin // size
            if true_rows[mine[first]] > begin - first * size:
                return None  # others have computed rows that are missing here
            behind = (end - 1) // size + 1
            blocks.update(mine[first:behind])
            spanned += behind - first
            total += end - begin
            begins.append(begin)
            ends.append(end)
            rows.append(track.row)
            tokens.append(track.sequence.tokens[begin + ahead : end + ahead])
        if len(blocks) < spanned or total > self.limits.max_num_tokens or len(tracks) > self.limits.max_batch_size:
            return None
        return self._packed(begins, ends, rows, tokens)

    def wrote(self, tracks: Sequence[Track]) -> None:
        """The rows of a :meth:`steady` pass are true now."""
        size, true_rows = self.block_size, self.true_rows
        for track in tracks:
            end = track.computed
            for number in range(track.rows // size, (end - 1) // size + 1):
                true_rows[track.blocks[number]] = min(end - number * size, size)
            track.rows = end

    # -- batches -----------------------------------------------------------------------------------------

    def passes(self, spans: Sequence[Span]) -> Iterator[list[Span]]:
        """The spans cut into passes within the executor's limits, in order."""
        most_tokens, most_requests = self.limits.max_num_tokens, self.limits.max_batch_size
        batch: list[Span] = []
        room = most_tokens
        for span in spans:
            begin = span.begin
            while begin < span.end:
                if not room or len(batch) == most_requests:
                    yield batch
                    batch, room = [], most_tokens
                end = min(span.end, begin + room)
                batch.append(Span(span.track, begin, end, span.logits and end == span.end))
                room -= end - begin
                begin = end
        if batch:
            yield batch

    def pack(self, spans: Sequence[Span], ahead: int) -> StepBatch:
        """The arrays of a pass.

        Args:
            ahead: row p carries token p + ahead.
        """
        return self._packed(
            [span.begin for span in spans],
            [span.end for span in spans],
            [span.track.row for span in spans],
            [span.track.sequence.tokens[span.begin + ahead : span.end + ahead] for span in spans],
            None if all(span.logits for span in spans) else [span.logits for span in spans],
        )

    def gather(self, rows: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int32]:
        """int32 [B, M], blocks of these tracks for contexts of up to ``length``."""
        return np.ascontiguousarray(self.table[rows, : -(-length // self.block_size)])

    def _packed(
        self,
        begins: list[int],
        ends: list[int],
        rows: list[int],
        tokens: list[npt.NDArray[np.int64]],
        wanted: list[bool] | None = None,
    ) -> StepBatch:
        """A pass over positions ``begins`` … ``ends - 1``; ``wanted``: whose last row's logits are, None: all."""
        # positions and the ends of runs by plain numbers: a few dozen of them
        positions: list[int] = []
        starts = [0]
        for begin, end in zip(begins, ends, strict=True):
            positions += range(begin, end)
            starts.append(len(positions))
        last = starts[1:] if wanted is None else [start for start, want in zip(starts[1:], wanted, strict=True) if want]
        return StepBatch(
            input_ids=np.concatenate(tokens),
            positions=np.array(positions, dtype=np.int64),
            query_start=np.array(starts, dtype=np.int32),
            sequence_lengths=np.array(ends, dtype=np.int32),
            block_table=self.gather(np.array(rows, dtype=np.int64), max(ends)),
            logit_indices=np.array(last, dtype=np.int64) - 1,
        )

    # -- inside ------------------------------------------------------------------------------------------

    def _mirror(self, track: Track, first: int) -> None:
        """Take over the sequence's blocks from number ``first`` on: behind it nothing is ever replaced."""
        blocks, versions = track.sequence.blocks[first:], self.versions
        if track.blocks[first:] != blocks:
            track.blocks[first:] = blocks
            self.table[track.row, first : first + len(blocks)] = blocks
        track.versions[first:] = [versions[block] for block in blocks]

    def _take_row(self) -> int:
        if not self._free:
            rows, width = self.table.shape
            self.table = np.concatenate([self.table, np.full((rows, width), -1, dtype=np.int32)])
            self._free.extend(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()
