"""Perplexity with sliding windows over a fixed token sequence.

Policy: baseline and candidate are scored on the same tokens with the same windows, so that their
per-token losses are paired; windows overlap so that every scored token but the first window's has at
least ``window - stride`` tokens of context. Losses are natural-log, float64, one a scored token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import torch

    LogitsFn = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Window:
    """Tokens ``begin:end`` are fed; targets ``score_from:end`` are scored."""

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


def score(
    logits_fn: LogitsFn,
    tokens: Sequence[int],
    *,
    window: int,
    stride: int,
    progress: Progress | None = None,
) -> Scores:
    """Losses of ``tokens`` under a model.

    Args:
        logits_fn: int64 [S] → float32 [S, V]; row i predicts token i + 1.
        tokens: the sequence, at least two tokens.
        window: tokens a forward pass sees.
        stride: tokens scored a window.
        progress: told once a window.

    Raises:
        ForgeError: TF-EVL-001 (windows), TF-EVL-002 (too few tokens), TF-EVL-003 (loss is not finite).
    """
    import torch

    if len(tokens) < 2:
        raise ForgeError(
            "TF-EVL-002",
            "perplexity needs at least two tokens",
            numbers={"tokens": len(tokens)},
            remedies=["evals.perplexity.tokens: 2048"],
        )
    report = progress or SilentProgress()
    windows = plan_windows(len(tokens), window, stride)
    ids = torch.as_tensor(list(tokens), dtype=torch.int64)
    nll = np.empty(len(tokens) - 1, dtype=np.float64)
    report.start(f"perplexity over {len(tokens) - 1} tokens", total=len(windows))
    for item in windows:
        logits_SV = logits_fn(ids[item.begin : item.end])
        first = item.score_from - item.begin - 1
        rows_LV = logits_SV[first:-1].float()
        targets_L = ids[item.score_from : item.end]
        loss_L = torch.nn.functional.cross_entropy(rows_LV, targets_L, reduction="none")
        nll[item.score_from - 1 : item.end - 1] = loss_L.double().numpy()
        report.advance()
    if not np.isfinite(nll).all():
        raise ForgeError(
            "TF-EVL-003",
            "the model's loss is not finite",
            numbers={"tokens": len(nll), "not_finite": int((~np.isfinite(nll)).sum())},
            why="NaN or infinite logits: a broken checkpoint, a zero scale or an overflow",
            remedies=["run the checkpoint audit", "compare with quantize.format: none"],
        )
    return Scores(nll=nll, tokens_sha256=tokens_digest(tokens), window=window, stride=stride)
