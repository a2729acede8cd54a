"""Tapped states that wait until a drafter has a reason to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class PendingTaps:
    """Rows of one tensor, taken and given back by number: one copy in, one out, no big tensor kept for a part of it.

    Args:
        width: values of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: torch.Tensor | None = None
        self._free: list[int] = []

    @property
    def capacity(self) -> int:
        """Rows that memory is held for."""
        return 0 if self._rows is None else len(self._rows)

    @property
    def in_use(self) -> int:
        """Rows that wait."""
        return self.capacity - len(self._free)

    def put(self, taps: torch.Tensor) -> list[int]:
        """Copy rows [n, width] in; their numbers, in order."""
        count = len(taps)
        if len(self._free) < count:
            self._grow(count - len(self._free), taps)
        assert self._rows is not None
        numbers = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        self._rows[self._index(numbers)] = taps
        return numbers

    def get(self, numbers: list[int]) -> torch.Tensor:
        """A copy of these rows [n, width], in order."""
        assert self._rows is not None
        return self._rows.index_select(0, self._index(numbers))

    def release(self, numbers: list[int]) -> None:
        """These rows are not needed any more."""
        self._free.extend(numbers)

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
