"""Answers known as text only: which ones a near tie explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from runtime.determinism import first_divergence, leaves_at_near_tie, near_tie_epsilon

WORDS = ["", " red", " green", " blue", " re", "\ufffd"]
EXPECTED = [1, 2, 3]
#: runner-up token and how far it lies under the best, by position
CLOSE = {1: (3, 0.01)}


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[t] for t in tokens)


def logits_after(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    row = np.full(len(WORDS), -8.0, dtype=np.float32)
    position = len(tokens)
    row[EXPECTED[position]] = 1.0
    if position in CLOSE:
        other, gap = CLOSE[position]
        row[other] = 1.0 - gap
    return row


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        (" red blue and whatever follows", True),
        (" red blue", True),
        (" red", False),
        (" red red", False),
        (" blue green", False),
        (" red green blue", False),
        ("", False),
    ],
)
def test_only_the_runner_up_at_its_position_explains(text: str, explained: bool) -> None:
    assert leaves_at_near_tie(EXPECTED, text, decode, logits_after) is explained


def test_an_early_end_and_half_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOSE, 1, (0, 0.01))
    assert leaves_at_near_tie(EXPECTED, " red", decode, logits_after), "the end was the runner-up"
    assert not leaves_at_near_tie(EXPECTED, " red blue", decode, logits_after)
    monkeypatch.setitem(CLOSE, 1, (5, 0.01))
    assert leaves_at_near_tie(EXPECTED, " red", decode, logits_after)


def test_beyond_the_bound_nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon = near_tie_epsilon(logits_after([1]))
    for gap, explained in ((0.9 * epsilon, True), (1.1 * epsilon, False)):
        monkeypatch.setitem(CLOSE, 1, (3, gap))
        assert leaves_at_near_tie(EXPECTED, " red blue", decode, logits_after) is explained
        divergence = first_divergence(EXPECTED, [1, 3], logits_after)
        assert divergence is not None
        assert divergence.near_tie is explained
