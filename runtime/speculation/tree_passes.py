"""Which nodes of a batch of trees run in a pass, level by level; whatever tokens they carry.

A tree mask covers the new tokens of one pass only, so a pass runs the nodes that a level expands and feeds their
ancestors again. An expanded node has a *column*: X a level, level after level.

Shape letters: B sequences, X nodes expanded a level, T rows of a pass, L rows whose logits are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from plugins.trees import StaticTree, TreeShape, TreeState
from runtime.executors.base import ExecutorLimits

Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class PassRows:
    """T rows of n sequences, those of a sequence one after the other, ancestors first.

    Attributes:
        of: int64 [T], each row's sequence.
        depth: int64 [T], how far below the first level its node stands.
        node: int64 [T], the node's place among the columns of all sequences.
        read: int64 [T], the place of its parent's state among :meth:`stride` states a sequence, the root's first.
        write: int64 [L], the places of the new nodes' own states.
        new: int64 [L], the rows of the last level's nodes.
        each: how many of these each sequence has; 0: not all the same number.
        starts: int32 [n + 1], where each sequence's rows begin.
        mask: uint8 [T, W], which rows of its sequence each one sees.
    """

    of: Integers
    depth: Integers
    node: Integers
    read: Integers
    write: Integers
    new: Integers
    each: int
    starts: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]

    @classmethod
    def made(
        cls,
        of: Integers,
        column: Integers,
        above: Integers,
        new: Integers,
        each: int,
        starts: npt.NDArray[np.int32],
        mask: npt.NDArray[np.uint8],
        shape: TreeShape,
    ) -> PassRows:
        """Of each row's ``column`` and its parent's (``above``, -1: the root), int64 [T]."""
        columns = columns_of(shape)
        places = of * (columns + 1) + 1
        return cls(
            of, column // shape.expand, of * columns + column, places + above, (places + column)[new], new, each,
            starts, mask,
        )  # fmt: skip


def columns_of(shape: TreeShape) -> int:
    """Nodes that a tree may expand below its root."""
    return shape.expand * (shape.levels - 1)


class Growth(Protocol):
    """The nodes that a batch of trees has expanded so far."""

    def level(self, state: TreeState, room: Integers) -> Integers | None:
        """Expand the next level's nodes.

        Args:
            room: int64 [B], most rows of each sequence's pass.

        Returns:
            int64, the sequences that have nodes there and room for them; None: all have.
        """

    def keep(self, on: Integers) -> None:
        """Go on with these of the sequences."""

    def fill(self, tokens: Integers, state: TreeState) -> None:
        """Write the last level's tokens into ``tokens`` int64 [B, N], by column."""

    def end(self, begin: int, limits: ExecutorLimits) -> int:
        """The first sequence that a pass which begins with ``begin`` has no room for."""

    def sizes(self, begin: int, end: int) -> Integers | int:
        """Int64 [end - begin], rows of each sequence's pass; one number: of each."""

    def rows(self, begin: int, end: int) -> PassRows:
        """A pass over the last level of sequences ``begin`` … ``end - 1``, each of which has a node there."""


class FixedPasses:
    """Passes of a static tree: worked out once, and for a batch of a size that has been seen, not again."""

    def __init__(self, tree: StaticTree, shape: TreeShape) -> None:
        self.shape, expand, levels = shape, shape.expand, shape.levels
        parents = tree.parents.tolist()
        depths = [0] * len(parents)
        for node, parent in enumerate(parents[1:], 1):
            depths[node] = depths[parent] + 1
        column: dict[int, int] = {0: -1}
        wide = [0] * (levels + 1)
        for node in sorted(set(parents[1:]) - {0}):
            column[node] = (depths[node] - 1) * expand + wide[depths[node]]
            wide[depths[node]] += 1
        #: of one sequence, by level: columns, those of parents, new rows, and what each row sees
        self._single: dict[int, tuple[Integers, Integers, Integers, npt.NDArray[np.uint8]]] = {}
        for level in range(1, levels):
            new = [node for node in column if depths[node] == level]
            ways = [_way(node, parents) for node in new]
            run = sorted({node for way in ways for node in way}, key=column.__getitem__)
            place = {node: row for row, node in enumerate(run)}
            mask = np.zeros((len(run), len(run)), dtype=np.uint8)
            for node in run:
                mask[place[node], [place[above] for above in _way(node, parents)]] = 1
            self._single[level] = (
                np.array([column[node] for node in run], dtype=np.int64),
                np.array([column[parents[node]] for node in run], dtype=np.int64),
                np.array([place[node] for node in new], dtype=np.int64),
                mask,
            )
        self._batches: dict[int, PassRows] = {}

    def size(self, level: int) -> int:
        """Rows of one sequence in a pass."""
        return len(self._single[level][0])

    def each(self, level: int) -> int:
        """Nodes of one sequence that a level expands."""
        return len(self._single[level][2])

    def rows(self, level: int, count: int) -> PassRows:
        """A pass over so many sequences; shared, not to be changed."""
        found = self._batches.get(level)
        if found is None or len(found.starts) != count + 1:
            found = self._batches[level] = self._repeated(level, count)
        return found

    def _repeated(self, level: int, count: int) -> PassRows:
        column, above, new, mask = self._single[level]
        size, every = len(column), np.arange(count, dtype=np.int64)
        return PassRows.made(
            of=np.repeat(every, size),
            column=np.tile(column, count),
            above=np.tile(above, count),
            new=(every[:, None] * size + new).ravel(),
            each=len(new),
            starts=np.arange(0, (count + 1) * size, size, dtype=np.int32),
            mask=np.tile(mask, (count, 1)),
            shape=self.shape,
        )


class FixedGrowth:
    """Trees of one static shape."""

    def __init__(self, passes: FixedPasses, count: int) -> None:
        self._passes, self._count, self._level = passes, count, 0

    def level(self, state: TreeState, room: Integers) -> Integers | None:
        """See :class:`Growth`."""
        self._level += 1
        size = self._passes.size(self._level)
        return None if size <= min(room.tolist()) else np.flatnonzero(size <= room)

    def keep(self, on: Integers) -> None:
        """See :class:`Growth`."""
        self._count = len(on)

    def fill(self, tokens: Integers, state: TreeState) -> None:
        """See :class:`Growth`."""
        first, each = (self._level - 1) * self._passes.shape.expand, self._passes.each(self._level)
        # the same candidates in every tree
        tokens[:, first : first + each] = state.candidate_tokens.numpy()[:, state.frontier.numpy()[0, :each]]

    def end(self, begin: int, limits: ExecutorLimits) -> int:
        """See :class:`Growth`."""
        most = min(limits.max_batch_size, limits.max_num_tokens // self._passes.size(self._level))
        return min(self._count, begin + most)

    def sizes(self, begin: int, end: int) -> int:
        """See :class:`Growth`."""
        return self._passes.size(self._level)

    def rows(self, begin: int, end: int) -> PassRows:
        """See :class:`Growth`."""
        return self._passes.rows(self._level, end - begin)


class FreeGrowth:
    """Trees whose nodes are chosen as they grow.

    Args:
        count: B.
    """

    def __init__(self, shape: TreeShape, count: int) -> None:
        self._shape, self._expand = shape, shape.expand
        #: bool [B, n], a level may expand fewer nodes than X; bool [B, n, n], ancestors and self; int64 [B, n]
        self._used = np.zeros((count, 0), dtype=bool)
        self._sees = np.zeros((count, 0, 0), dtype=bool)
        self._above = np.zeros((count, 0), dtype=np.int64)
        #: int64 [B, X], candidates that the last level's nodes are; -1: none
        self._frontier = np.zeros((count, 0), dtype=np.int64)
        self._rows = self._used
        self._sizes = np.zeros(count, dtype=np.int64)

    def level(self, state: TreeState, room: Integers) -> Integers | None:
        """See :class:`Growth`."""
        frontier = state.frontier.numpy().astype(np.int64)
        count, width = frontier.shape
        old, used = self._used.shape[1], frontier >= 0
        above = np.full((count, width), -1, dtype=np.int64)
        sees = np.zeros((count, old + width, old + width), dtype=bool)
        sees[:, old:, old:] = np.eye(width, dtype=bool)
        if old:
            parents = np.take_along_axis(state.candidate_parents.numpy(), np.where(used, frontier, 0), 1)
            above = (self._frontier[:, None, :] == parents[:, :, None]).argmax(-1) + (old - width)
            sees[:, :old, :old] = self._sees
            sees[:, old:, :old] = self._sees[np.arange(count)[:, None], above]
        self._used = np.concatenate([self._used, used], 1)
        self._above = np.concatenate([self._above, above], 1)
        self._sees, self._frontier = sees, frontier
        # the level's nodes and those above them
        self._rows = (sees[:, old:] & used[:, :, None]).any(1)
        self._sizes = self._rows.sum(1)
        on = np.flatnonzero((self._sizes > 0) & (self._sizes <= room))
        return None if len(on) == count else on

    def keep(self, on: Integers) -> None:
        """See :class:`Growth`."""
        self._used, self._sees, self._above = self._used[on], self._sees[on], self._above[on]
        self._frontier, self._rows, self._sizes = self._frontier[on], self._rows[on], self._sizes[on]

    def fill(self, tokens: Integers, state: TreeState) -> None:
        """See :class:`Growth`."""
        end = self._used.shape[1]
        candidates = np.maximum(self._frontier, 0)
        tokens[:, end - self._expand : end] = np.take_along_axis(state.candidate_tokens.numpy(), candidates, 1)

    def end(self, begin: int, limits: ExecutorLimits) -> int:
        """See :class:`Growth`."""
        fit = int((np.cumsum(self._sizes[begin:]) <= limits.max_num_tokens).sum())
        return begin + min(fit, limits.max_batch_size)

    def sizes(self, begin: int, end: int) -> Integers:
        """See :class:`Growth`."""
        return self._sizes[begin:end]

    def rows(self, begin: int, end: int) -> PassRows:
        """See :class:`Growth`."""
        rows, sees = self._rows[begin:end], self._sees[begin:end]
        of, column = np.nonzero(rows)
        starts = np.zeros(end - begin + 1, dtype=np.int32)
        np.cumsum(self._sizes[begin:end], out=starts[1:])
        # a row's place among those of its sequence, by column
        place = rows.cumsum(1) - 1
        row, seen = np.nonzero(sees[of, column] & rows[of])
        mask = np.zeros((len(of), int(np.diff(starts).max())), dtype=np.uint8)
        mask[row, place[of[row], seen]] = 1
        width = self._expand
        wide = rows[:, -width:].sum(1)
        return PassRows.made(
            of=of,
            column=column,
            above=self._above[begin:end][of, column],
            new=np.flatnonzero(column >= rows.shape[1] - width),
            each=int(wide[0]) if wide.min() == wide.max() else 0,
            starts=starts,
            mask=mask,
            shape=self._shape,
        )


def _way(node: int, parents: list[int]) -> list[int]:
    """A node and its ancestors, without the root."""
    way = []
    while node > 0:
        way.append(node)
        node = parents[node]
    return way
