"""Confidence intervals for quality figures.

Token losses of one text are correlated, so the bootstrap resamples contiguous blocks of tokens, the
same blocks for baseline and candidate (Künsch 1989, block bootstrap; paired as in Koehn 2004). Items that are right or
wrong are compared by McNemar's test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evals.perplexity import Scores
from trtforge.ground.errors import ForgeError

#: tokens in a resampled block: long against the correlation of neighbouring losses
BLOCK_TOKENS = 64
RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    def shown(self, style: str) -> str:
        """Value and bounds, each as the format ``style`` has it."""
        return f"{self.value:{style}} [{self.low:{style}}, {self.high:{style}}]"

    def __str__(self) -> str:
        return self.shown(".4g")


def _block_means(values: np.ndarray, seed: int, resamples: int, block: int) -> np.ndarray:
    """Means of ``values`` under block resampling: float64 [resamples]."""
    starts = np.arange(0, len(values), block)
    sums = np.add.reduceat(values, starts)
    sizes = np.diff(np.append(starts, len(values)))
    picks = np.random.default_rng(seed).integers(0, len(starts), size=(resamples, len(starts)))
    means: np.ndarray = sums[picks].sum(axis=1) / sizes[picks].sum(axis=1)
    return means


def _interval(value: float, draws: np.ndarray, confidence: float) -> Interval:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value=value, low=float(low), high=float(high), confidence=confidence)


def perplexity_interval(
    scores: Scores, *, seed: int = 0, resamples: int = RESAMPLES, block: int = BLOCK_TOKENS
) -> Interval:
    """Perplexity with a block-bootstrap interval."""
    draws = np.exp(_block_means(scores.nll, seed, resamples, block))
    return _interval(scores.perplexity, draws, CONFIDENCE)


def paired_increase(
    baseline: Scores,
    candidate: Scores,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    block: int = BLOCK_TOKENS,
) -> Interval:
    """Relative increase of perplexity, candidate over baseline, minus one, with a paired interval.

    Raises:
        ForgeError: TF-EVL-004 when the two were not scored on the same tokens with the same windows.
    """
    same = (
        baseline.tokens_sha256 == candidate.tokens_sha256
        and (baseline.window, baseline.stride) == (candidate.window, candidate.stride)
        and baseline.nll.shape == candidate.nll.shape
    )
    if not same:
        raise ForgeError(
            "TF-EVL-004",
            "baseline and candidate were not scored on the same tokens",
            numbers={
                "baseline": [baseline.tokens_sha256[:12], baseline.window, baseline.stride, len(baseline.nll)],
                "candidate": [candidate.tokens_sha256[:12], candidate.window, candidate.stride, len(candidate.nll)],
            },
            why="a paired interval needs the loss of each token under both models",
            remedies=["score both with the same corpus, tokens, window and stride"],
        )
    difference = candidate.nll - baseline.nll
    draws = np.expm1(_block_means(difference, seed, resamples, block))
    return _interval(float(np.expm1(difference.mean())), draws, CONFIDENCE)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Sum over sum, bootstrapped over the pairs: a rate of units (prompts, timings) that weigh as much as they hold.

    ``denominators`` are above zero and there is at least one pair.
    """
    over, under = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(over), size=(resamples, len(over)))
    draws = over[picks].sum(axis=1) / under[picks].sum(axis=1)
    return _interval(float(over.sum() / under.sum()), draws, CONFIDENCE)


def geometric_mean(ratios: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Geometric mean of positive ratios, bootstrapped over them."""
    logs = ratio_interval(np.log(ratios).tolist(), [1.0] * len(ratios), seed=seed, resamples=resamples)
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.confidence)


def wilson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """A proportion with Wilson's score interval (Wilson 1927); ``trials`` is at least one."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no proportion")
    z = _normal_quantile((1 + confidence) / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), confidence)


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)


def paired_mean_difference(
    baseline: Sequence[float], candidate: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Mean of candidate minus baseline over independent items, bootstrapped over the pairs; at least one pair."""
    difference = np.asarray(candidate, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return ratio_interval(difference.tolist(), [1.0] * len(difference), seed=seed, resamples=resamples)


def block_mean(values: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES, block: int = BLOCK_TOKENS) -> Interval:
    """Mean of a figure of each token (a divergence, an agreement), block-bootstrapped; at least one token."""
    draws = _block_means(np.asarray(values, dtype=np.float64), seed, resamples, block)
    return _interval(float(np.mean(values)), draws, CONFIDENCE)


def growth(difference: Interval) -> Interval:
    """A mean difference of losses in nats as the relative increase of perplexity that it is."""
    value, low, high = (float(np.expm1(x)) for x in (difference.value, difference.low, difference.high))
    return Interval(value, low, high, difference.confidence)


@dataclass(frozen=True)
class McNemar:
    """Right or wrong of two models on the same items.

    Attributes:
        items: how many both answered.
        lost: right by the baseline only.
        gained: right by the candidate only.
        p_value: two-sided, exact binomial over the items on which they differ (McNemar 1947); 1 where they never do.
        change: share of right items, candidate minus baseline, with the interval of Agresti and Min (2005), which stays
            wide where a small sample shows no difference at all.
    """

    items: int
    baseline_right: int
    candidate_right: int
    lost: int
    gained: int
    p_value: float
    change: Interval

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def mcnemar(baseline: Sequence[bool], candidate: Sequence[bool]) -> McNemar:
    """Both models' verdicts on the same items, in the same order; at least one item."""
    pairs = list(zip(baseline, candidate, strict=True))
    if not pairs:
        raise ValueError("no items to compare")
    lost, gained = sum(b and not c for b, c in pairs), sum(c and not b for b, c in pairs)
    differing = lost + gained
    tail = sum(math.comb(differing, i) for i in range(min(lost, gained) + 1)) / 2**differing
    return McNemar(
        len(pairs),
        sum(bool(b) for b in baseline),
        sum(bool(c) for c in candidate),
        lost,
        gained,
        min(1.0, 2 * tail),
        change_interval(lost, gained, len(pairs)),
    )


def change_interval(lost: int, gained: int, items: int, confidence: float = CONFIDENCE) -> Interval:
    """Difference of two paired proportions: Wald's interval with half an item added to each of the four cells."""
    z, padded = _normal_quantile((1 + confidence) / 2), items + 2
    down, up = lost + 0.5, gained + 0.5
    centre = (up - down) / padded
    half = z * math.sqrt(max(0.0, down + up - (up - down) ** 2 / padded)) / padded
    return Interval((gained - lost) / items, max(-1.0, centre - half), min(1.0, centre + half), confidence)
