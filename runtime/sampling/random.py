"""One uniform number per sampled token, a pure function of (seed, sample, step).

Policy: no generator state exists, so nothing that happens to other requests, to the batch or to the
request itself (preemption, chunking) can shift the stream: the same seed gives the same numbers. The
function is SplitMix64's finalizer (Steele et al. 2014) applied in a chain.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's output function: a bijection on 64-bit integers with good avalanche."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, sample: int, step: int) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: the request's seed, in [0, 2^64).
        sample: which of the request's parallel samples.
        step: how many tokens that sample has already generated.
    """
    return (mix64(mix64(mix64(seed) ^ sample) ^ step) >> 11) * 2.0**-53
