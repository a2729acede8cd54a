"""Tapped states that wait until a drafter has a reason to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class PendingTaps:
    """Rows of states, taken and given back by number; no big tensor is kept for a part of it.

    What was put last is kept as it came, since the next pass mostly reads just that; what of it still waits when more
    is put is copied into one tensor of rows.

    Args:
        width: values of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: torch.Tensor | None = None
        self._free: list[int] = []
        #: what was put last, its numbers in order, and those of them that wait; None: all are among the rows
        self._last: torch.Tensor | None = None
        self._numbers: list[int] = []
        self._waiting: set[int] = set()

    @property
    def capacity(self) -> int:
        """Rows that memory is held for."""
        return 0 if self._rows is None else len(self._rows)

    @property
    def in_use(self) -> int:
        """Rows that wait."""
        return self.capacity - len(self._free)

    def put(self, taps: torch.Tensor) -> list[int]:
        """Take rows [n, width], which nobody changes from now on; their numbers, in order."""
        self._copy_in()
        count = len(taps)
        if len(self._free) < count:
            self._grow(count - len(self._free), taps)
        numbers = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        # a list of its own: the caller's shrinks as its rows are used
        self._last, self._numbers, self._waiting = taps, list(numbers), set(numbers)
        return numbers

    def get(self, numbers: list[int]) -> torch.Tensor:
        """These rows [n, width], in order; not to be changed."""
        if self._last is not None:
            if numbers == self._numbers:
                return self._last
            if self._waiting.issuperset(numbers):
                place = {number: at for at, number in enumerate(self._numbers)}
                return self._last.index_select(0, self._index([place[number] for number in numbers]))
            self._copy_in()
        assert self._rows is not None
        return self._rows.index_select(0, self._index(numbers))

    def release(self, numbers: list[int]) -> None:
        """These rows are not needed any more."""
        self._free += numbers
        if self._last is not None:
            self._waiting.difference_update(numbers)
            if not self._waiting:
                self._last = None

    def _copy_in(self) -> None:
        """Copy what waits of the last put into the rows."""
        if self._last is None:
            return
        assert self._rows is not None
        waiting = [(number, at) for at, number in enumerate(self._numbers) if number in self._waiting]
        numbers, places = (list(column) for column in zip(*waiting, strict=True))
        taps = self._last if len(places) == len(self._numbers) else self._last.index_select(0, self._index(places))
        self._rows.index_copy_(0, self._index(numbers), taps)
        self._last = None

    def _index(self, numbers: list[int]) -> torch.Tensor:
        import torch

        assert self._rows is not None
        return torch.tensor(numbers, dtype=torch.int64, device=self._rows.device)

    def _grow(self, missing: int, like: torch.Tensor) -> None:
        old = self.capacity
        rows = like.new_empty(max(64, 2 * old, old + missing), self._width)
        if self._rows is not None:
            rows[:old] = self._rows
        self._rows = rows
        self._free.extend(range(len(rows) - 1, old - 1, -1))
