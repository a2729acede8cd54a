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

from plugins.trees import StaticTree, TreeState

Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class PassRows:
    """T rows of n sequences, those of a sequence one after the other, ancestors first.

    Attributes:
        of: int64 [T], each row's sequence.
        column: int64 [T], its node's.
        above: int64 [T], its parent's column; -1: the root.
        new: int64 [L], the rows of the last level's nodes.
        each: how many of these each sequence has; 0: not all the same number.
        starts: int32 [n + 1], where each sequence's rows begin.
        mask: uint8 [T, W], which rows of its sequence each one sees.
    """

    of: Integers
    column: Integers
    above: Integers
    new: Integers
    each: int
    starts: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]


class Growth(Protocol):
    """The nodes that a batch of trees has expanded so far."""

    def level(self, state: TreeState) -> Integers:
        """Expand the next level's nodes; int64 [B], the rows of each sequence's pass, 0: it has no node there."""

    def keep(self, on: Integers) -> None:
        """Go on with these of the sequences."""

    def rows(self, begin: int, end: int) -> PassRows:
        """A pass over the last level of sequences ``begin`` … ``end - 1``, each of which has a node there."""


class FixedPasses:
    """Passes of a static tree: worked out once, and for a batch of a size that has been seen, not again.

    Args:
        expand: X.
        levels: of the tree.
    """

    def __init__(self, tree: StaticTree, expand: int, levels: int) -> None:
        parents = tree.parents.tolist()
        depths = [0] * len(parents)
        for node, parent in enumerate(parents[1:], 1):
            depths[node] = depths[parent] + 1
        column: dict[int, int] = {0: -1}
        wide = [0] * (levels + 1)
        for node in sorted(set(parents[1:]) - {0}):
            column[node] = (depths[node] - 1) * expand + wide[depths[node]]
            wide[depths[node]] += 1
        #: of one sequence, by level; the first level has none
        self._single: list[PassRows | None] = [None]
        for level in range(1, levels):
            new = [node for node in column if depths[node] == level]
            ways = [_way(node, parents) for node in new]
            run = sorted({node for way in ways for node in way}, key=column.__getitem__)
            place = {node: row for row, node in enumerate(run)}
            mask = np.zeros((len(run), len(run)), dtype=np.uint8)
            for node in run:
                mask[place[node], [place[above] for above in _way(node, parents)]] = 1
            self._single.append(
                PassRows(
                    of=np.zeros(len(run), dtype=np.int64),
                    column=np.array([column[node] for node in run], dtype=np.int64),
                    above=np.array([column[parents[node]] for node in run], dtype=np.int64),
                    new=np.array([place[node] for node in new], dtype=np.int64),
                    each=len(new),
                    starts=np.array([0, len(run)], dtype=np.int32),
                    mask=mask,
                )
            )
        self._batches: dict[int, PassRows] = {}

    def size(self, level: int) -> int:
        """Rows of one sequence in a pass."""
        single = self._single[level]
        return 0 if single is None or not single.each else len(single.of)

    def rows(self, level: int, count: int) -> PassRows:
        """A pass over so many sequences; shared, not to be changed."""
        found = self._batches.get(level)
        if found is None or len(found.starts) != count + 1:
            found = self._batches[level] = self._repeated(level, count)
        return found

    def _repeated(self, level: int, count: int) -> PassRows:
        single = self._single[level]
        assert single is not None
        size, every = len(single.of), np.arange(count, dtype=np.int64)
        return PassRows(
            of=np.repeat(every, size),
            column=np.tile(single.column, count),
            above=np.tile(single.above, count),
            new=(every[:, None] * size + single.new).ravel(),
            each=single.each,
            starts=np.arange(0, (count + 1) * size, size, dtype=np.int32),
            mask=np.tile(single.mask, (count, 1)),
        )


class FixedGrowth:
    """Trees of one static shape."""

    def __init__(self, passes: FixedPasses, count: int) -> None:
        self._passes, self._count, self._level = passes, count, 0

    def level(self, state: TreeState) -> Integers:
        """See :class:`Growth`."""
        self._level += 1
        return np.full(self._count, self._passes.size(self._level), dtype=np.int64)

    def keep(self, on: Integers) -> None:
        """See :class:`Growth`."""
        self._count = len(on)

    def rows(self, begin: int, end: int) -> PassRows:
        """See :class:`Growth`."""
        return self._passes.rows(self._level, end - begin)


class FreeGrowth:
    """Trees whose nodes are chosen as they grow.

    Args:
        count: B.
        expand: X.
    """

    def __init__(self, count: int, expand: int) -> None:
        self._expand = expand
        #: bool [B, n], a level may expand fewer nodes than X; bool [B, n, n], ancestors and self; int64 [B, n]
        self._used = np.zeros((count, 0), dtype=bool)
        self._sees = np.zeros((count, 0, 0), dtype=bool)
        self._above = np.zeros((count, 0), dtype=np.int64)
        #: int64 [B, X], candidates that the last level's nodes are; -1: none
        self._frontier = np.zeros((count, 0), dtype=np.int64)
        self._rows = self._used

    def level(self, state: TreeState) -> Integers:
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
        sizes: Integers = self._rows.sum(1)
        return sizes

    def keep(self, on: Integers) -> None:
        """See :class:`Growth`."""
        self._used, self._sees, self._above = self._used[on], self._sees[on], self._above[on]
        self._frontier, self._rows = self._frontier[on], self._rows[on]

    def rows(self, begin: int, end: int) -> PassRows:
        """See :class:`Growth`."""
        rows, sees = self._rows[begin:end], self._sees[begin:end]
        of, column = np.nonzero(rows)
        starts = np.zeros(end - begin + 1, dtype=np.int32)
        np.cumsum(rows.sum(1), out=starts[1:])
        # a row's place among those of its sequence, by column
        place = rows.cumsum(1) - 1
        row, seen = np.nonzero(sees[of, column] & rows[of])
        mask = np.zeros((len(of), int(np.diff(starts).max())), dtype=np.uint8)
        mask[row, place[of[row], seen]] = 1
        width = self._expand
        wide = rows[:, -width:].sum(1)
        return PassRows(
            of=of,
            column=column,
            above=self._above[begin:end][of, column],
            new=np.flatnonzero(column >= rows.shape[1] - width),
            each=int(wide[0]) if wide.min() == wide.max() else 0,
            starts=starts,
            mask=mask,
        )


def _way(node: int, parents: list[int]) -> list[int]:
    """A node and its ancestors, without the root."""
    way = []
    while node > 0:
        way.append(node)
        node = parents[node]
    return way
