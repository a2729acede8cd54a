"""Answers known as text only: which ones a near tie explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from runtime.determinism import first_divergence, near_tie_bound, near_tie_epsilon, parting

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


def explained_by_a_near_tie(text: str) -> bool:
    found = parting(EXPECTED, text, decode, logits_after)
    return found is not None and found.near_tie


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        (" red blue and whatever follows", True),
        (" red blue", True),
        (" red", False),
        (" red red", False),
        (" blue green", False),
        ("", False),
    ],
)
def test_only_the_runner_up_at_its_position_explains(text: str, explained: bool) -> None:
    assert explained_by_a_near_tie(text) is explained


def test_an_early_end_and_half_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOSE, 1, (0, 0.01))
    assert explained_by_a_near_tie(" red"), "the end was the runner-up"
    assert not explained_by_a_near_tie(" red blue")
    monkeypatch.setitem(CLOSE, 1, (5, 0.01))
    assert explained_by_a_near_tie(" red")


def test_beyond_the_bound_nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon = near_tie_epsilon(logits_after([1]))
    for gap, explained in ((0.9 * epsilon, True), (1.1 * epsilon, False)):
        monkeypatch.setitem(CLOSE, 1, (3, gap))
        assert explained_by_a_near_tie(" red blue") is explained
        divergence = first_divergence(EXPECTED, [1, 3], logits_after)
        assert divergence is not None
        assert divergence.near_tie is explained


def test_the_same_text_does_not_part() -> None:
    assert parting(EXPECTED, " red green blue", decode, logits_after) is None


def test_the_position_the_tokens_and_the_margin_are_told() -> None:
    found = parting(EXPECTED, " red red", decode, logits_after)
    assert found is not None and (found.position, found.tokens, found.gap) == (1, (2, 1), 9.0)
    assert found.describe(decode) == (
        "they part at token 1: ' green' against ' red', 9 below the best logit, beyond the near-tie bound of 0.25"
    )
    found = parting(EXPECTED, " red blue", decode, logits_after)
    assert found is not None and "' green' against ' blue', 0.01 below the best logit, within" in found.describe(decode)
    found = parting(EXPECTED, "#1111", decode, logits_after)
    assert found is not None and found.position == 0 and "further than any likely token" in found.describe(decode)


def test_one_bound_measured_or_allowed() -> None:
    assert near_tie_bound(16.0, "bfloat16") == 4 * 2.0**-7 * 16
    assert near_tie_bound(16.0, "bfloat16", noise=0.34) == pytest.approx(1.02)
    assert near_tie_bound(16.0, "bfloat16", noise=0.0) == 2.0**-8 * 16, "a logit cannot be told finer"
    assert near_tie_bound(16.0, "float32", noise=1e-4) == pytest.approx(3e-4)
    row = np.array([3.0, -16.0, np.inf], dtype=np.float32)
    assert near_tie_epsilon(row, "bfloat16", 0.34) == near_tie_bound(16.0, "bfloat16", 0.34)
