"""The waiting line: priority classes, first come first served inside each, aging across them.

Inside a class everybody ages alike, so only the heads of the classes compete: taking the best costs
O(classes), however long the line is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from runtime.scheduler.sequence import Sequence


def _place(sequence: Sequence) -> tuple[int, int]:
    return (sequence.order, sequence.sample)


class WaitingQueue:
    """Waiting sequences by rank.

    Args:
        aging_seconds: waiting time worth one level of priority.
    """

    def __init__(self, aging_seconds: float) -> None:
        self._aging = aging_seconds
        self._classes: dict[int, list[Sequence]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        for members in self._classes.values():
            yield from members

    def rank(self, sequence: Sequence, now: float) -> tuple[float, int, int]:
        """(minus effective priority, arrival, sample): smaller is served earlier."""
        aged = (now - sequence.waiting_since) // self._aging
        return (-(sequence.priority + aged), sequence.order, sequence.sample)

    def add(self, sequence: Sequence) -> None:
        """Queue ``sequence`` by its arrival, which for a preempted one is before all newer ones."""
        members = self._classes.setdefault(sequence.priority, [])
        if not members or _place(members[-1]) < _place(sequence):
            members.append(sequence)
        else:
            insort(members, sequence, key=_place)
        self._count += 1

    def best(self, now: float) -> Sequence | None:
        """The sequence to admit next, left in the queue."""
        heads = [members[0] for members in self._classes.values()]
        return min(heads, key=lambda s: self.rank(s, now), default=None)

    def remove(self, sequence: Sequence) -> None:
        """Take ``sequence`` out.

        Raises:
            KeyError: it is not queued.
        """
        members = self._classes.get(sequence.priority, [])
        at = bisect_left(members, _place(sequence), key=_place)
        if at == len(members) or members[at] is not sequence:
            raise KeyError(sequence.key)
        del members[at]
        if not members:
            del self._classes[sequence.priority]
        self._count -= 1
