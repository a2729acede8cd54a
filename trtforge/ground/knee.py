"""The knee of a throughput–latency curve: where more load buys latency and little throughput."""

from __future__ import annotations

from collections.abc import Sequence


def knee_index(latency: Sequence[float], throughput: Sequence[float]) -> int | None:
    """Index of the knee, or None when the curve has fewer than three points or no bend.

    The point farthest above the chord from first to last, both axes scaled to [0, 1] (Satopää et al.,
    "Finding a Kneedle in a Haystack", 2011).
    """
    if len(latency) != len(throughput):
        raise ValueError("latency and throughput differ in length")
    if len(latency) < 3:
        return None
    x_span, y_span = latency[-1] - latency[0], max(throughput) - throughput[0]
    if x_span <= 0 or y_span <= 0:
        return None
    heights = [
        (y - throughput[0]) / y_span - (x - latency[0]) / x_span for x, y in zip(latency, throughput, strict=True)
    ]
    best = max(range(len(heights)), key=heights.__getitem__)
    return best if 0 < best < len(heights) - 1 and heights[best] > 0 else None
