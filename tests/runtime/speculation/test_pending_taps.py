"""Waiting states keep their numbers, whether they lie as they came or were copied."""

from __future__ import annotations

from random import Random

import pytest
import torch

from runtime.speculation.pending_taps import PendingTaps

WIDTH = 3


def test_what_was_put_last_is_read_as_it_came() -> None:
    pending = PendingTaps(WIDTH)
    taps = torch.randn(5, WIDTH)
    numbers = pending.put(taps)
    assert pending.get(numbers) is taps
    assert torch.equal(pending.get(numbers[::-1]), taps.flip(0))
    pending.release(numbers)
    assert pending.in_use == 0 and pending._last is None


def test_the_list_of_numbers_is_the_callers() -> None:
    """A forked sample keeps what it is given as its list of waiting rows, and takes from it as they are computed."""
    pending = PendingTaps(WIDTH)
    taps = torch.randn(5, WIDTH)
    numbers = pending.put(taps)
    kept = list(numbers)
    pending.release(numbers[:2])
    del numbers[:2]
    assert torch.equal(pending.get(numbers), taps[2:])
    pending.put(torch.randn(4, WIDTH))
    assert torch.equal(pending.get(kept[2:]), taps[2:])


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_that_were_put(seed: int) -> None:
    """Any order of puts, reads and releases; what is read is what was put under its number."""
    random = Random(seed)
    generator = torch.Generator().manual_seed(seed)
    pending, truth = PendingTaps(WIDTH), {}
    for _ in range(120):
        action = random.random()
        if action < 0.4:
            taps = torch.randn(random.choice([1, 2, 7, 70]), WIDTH, generator=generator)
            numbers = pending.put(taps)
            assert not truth.keys() & set(numbers), "a number was given twice"
            truth.update(zip(numbers, taps.clone(), strict=True))
            del numbers[: random.randint(0, len(numbers))]  # the list is the caller's
        elif truth:
            numbers = random.sample(sorted(truth), random.randint(1, len(truth)))
            if action < 0.7:
                assert torch.equal(pending.get(numbers), torch.stack([truth[number] for number in numbers]))
            else:
                pending.release(numbers)
                for number in numbers:
                    del truth[number]
        assert pending.in_use == len(truth)
