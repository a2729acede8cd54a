"""Perplexity with sliding windows over a fixed token sequence.

Policy: baseline and candidate are scored on the same tokens with the same windows, so that their
per-token losses are paired; windows overlap so that every scored token but the first window's has at
least ``window - stride`` tokens of context. Losses are natural-log, float64, one a scored token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class Window:
    """Tokens ``begin:end``, of which ``score_from:end`` are scored; the last one predicts nothing and is not fed."""

    begin: int
    end: int
    score_from: int


@dataclass(frozen=True)
class Scores:
    """Per-token losses of one model on one token sequence.

    Attributes:
        nll: float64 [n], negative log-likelihood of tokens ``1 .. n`` in nats.
        tokens_sha256: hash of the token ids, so that only paired scores are ever compared.
        window: tokens a forward pass sees.
        stride: tokens scored a window (all but the first).
    """

    nll: np.ndarray
    tokens_sha256: str
    window: int
    stride: int

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return float(np.exp(self.nll.mean()))


def plan_windows(length: int, window: int, stride: int) -> list[Window]:
    """Windows that score every token of ``1 .. length-1`` exactly once, in order."""
    if window < 2 or not 0 < stride < window:
        raise ForgeError(
            "TF-EVL-001",
            "window and stride cannot score a sequence",
            numbers={"window": window, "stride": stride},
            why="a window needs one token of context for each token that it scores, so 0 < stride < window",
            remedies=[f"stride: {max(1, window // 2)}"],
        )
    windows: list[Window] = []
    scored = 1  # token 0 has no context and is never scored
    while scored < length:
        end = min(length, window) if not windows else min(length, scored + stride)
        windows.append(Window(begin=max(0, end - window), end=end, score_from=scored))
        scored = end
    return windows


def tokens_digest(tokens: Sequence[int]) -> str:
    """SHA-256 of the ids as little-endian int64."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()
