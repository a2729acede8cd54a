"""Counters, gauges and histograms of an engine, with the names that vLLM's users know (prefix ``trtforge_``).

Policy: recording costs a few additions and no lock on the stepping thread; readers get a snapshot that is
right to within one step. ``prometheus_client`` writes the exposition text; :func:`register_prometheus` adds the figures
to a registry of its.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from runtime.speculation import figures as speculative
from runtime.speculation.draft import Point
from runtime.speculation.figures import SpeculationFigures

PREFIX = "trtforge_"

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_STEP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS = tuple(float(2**k) for k in range(18))


class Histogram:
    """Cumulative-bucket histogram as Prometheus defines it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Values recorded."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate of the q-quantile by linear interpolation inside its bucket; 0.0 when empty."""
        wanted, below, low = q * self.count, 0, 0.0
        for bound, count in zip((*self.bounds, self.bounds[-1]), self.counts, strict=True):
            if count and below + count >= wanted:
                return low + (bound - low) * max(0.0, wanted - below) / count
            below, low = below + count, bound
        return 0.0

    def snapshot(self) -> dict[str, Any]:
        """count, sum, mean and three quantiles."""
        count = self.count
        return {
            "count": count,
            "sum": self.total,
            "mean": self.total / count if count else 0.0,
            "p50": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "p99": self.quantile(0.99),
        }


_HELP = {
    "num_requests_running": "Sequences in the running batch",
    "num_requests_waiting": "Sequences waiting to be scheduled",
    "kv_blocks_total": "KV blocks in the pool",
    "kv_blocks_used": "KV blocks held by running sequences",
    "kv_blocks_free": "KV blocks that can be allocated (cached prefixes included)",
    "kv_blocks_cached": "Free KV blocks that hold a reusable prefix",
    "kv_cache_usage_perc": "Share of KV blocks in use, 0 to 1",
    "prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits_total": "Prompt tokens found in the prefix cache",
    "num_preemptions_total": "Sequences preempted for lack of KV blocks",
    "prefix_cache_evictions_total": "Cached prefix blocks that made room for others",
    "max_num_seqs": "Requests that a step may hold",
    "max_num_batched_tokens": "Tokens that a step may compute",
    "wasted_tokens_total": "Tokens computed for requests that ended before their time, or computed twice, by reason",
    "prompt_tokens_total": "Prompt tokens of admitted requests",
    "generation_tokens_total": "Tokens generated",
    "iterations_total": "Engine steps",
    "step_failures_total": "Engine steps that raised",
    "prompt_characters_removed_total": "Invisible and control characters taken out of prompts",
    "requests_coalesced_total": "Requests answered with an equal one's answer, counted in no other figure",
    "outputs_joined_total": "Outputs that went with an earlier one, whose response was still waiting to be sent",
    "coalesced_prompt_tokens_total": "Prompt tokens of requests that an equal one answered",
    "request_success_total": "Finished requests by reason",
    "requests_rejected_total": "Requests that were refused, by the code of the refusal",
    "time_to_first_token_seconds": "Arrival to first token",
    "inter_token_latency_seconds": "Time between tokens of a sample",
    "e2e_request_latency_seconds": "Arrival to end",
    "request_queue_time_seconds": "Arrival to first scheduling",
    "request_prompt_tokens": "Prompt length",
    "request_generation_tokens": "Generated tokens of a request",
    "cancellation_seconds": "A cancellation asked for to its blocks free",
    "iteration_tokens": "Tokens computed in a step",
    "iteration_host_seconds": "Time of a step outside the executor",
    **speculative.HELP,
    **speculative.CHOICE_HELP,
}
_COUNTERS = {
    "prompt_tokens_total",
    "generation_tokens_total",
    "iterations_total",
    "step_failures_total",
    "prompt_characters_removed_total",
    "requests_coalesced_total",
    "outputs_joined_total",
    "coalesced_prompt_tokens_total",
    "wasted_tokens_total",
    "prefix_cache_evictions_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "requests_rejected_total",
    *(name for name in speculative.HELP if name.endswith("_total")),
}
_ORDER = {name: order for order, name in enumerate(speculative.HELP)}


_SERIES = ("_bucket", "_sum", "_count")


def is_counter(name: str) -> bool:
    """Whether a figure only ever grows; ``kv_blocks_total`` does not, a histogram's series do."""
    return name in _COUNTERS or _of_histogram(name) is not None


def help_of(name: str) -> str:
    """One sentence on a figure, or on the histogram that a series is of; names without the prefix."""
    return _HELP[_of_histogram(name) or name]


def _of_histogram(name: str) -> str | None:
    """The histogram that ``name`` is a series of."""
    return next(
        (name.removesuffix(end) for end in _SERIES if name.endswith(end) and name.removesuffix(end) in _HELP), None
    )


@dataclass(slots=True)
class Metrics:
    """Figures of one engine; the engine writes, anybody reads :meth:`snapshot`."""

    counters: dict[str, int] = field(
        default_factory=lambda: {
            "prompt_tokens_total": 0,
            "generation_tokens_total": 0,
            "iterations_total": 0,
            "step_failures_total": 0,
            "prompt_characters_removed_total": 0,
            "requests_coalesced_total": 0,
            "coalesced_prompt_tokens_total": 0,
        }
    )
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "timeout": 0, "cancelled": 0, "error": 0}
    )
    #: computed tokens of requests that ended before their time
    wasted: dict[str, int] = field(default_factory=lambda: {"timeout": 0, "cancelled": 0, "error": 0})
    #: tokens that are computed again after a preemption, from whoever counts them
    recomputed: Callable[[], int] = field(default=lambda: 0)
    #: refusals by code; several threads refuse
    rejected: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    time_to_first_token_seconds: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    inter_token_latency_seconds: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e_request_latency_seconds: Histogram = field(default_factory=lambda: Histogram(_E2E))
    request_queue_time_seconds: Histogram = field(default_factory=lambda: Histogram(_E2E))
    request_prompt_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    request_generation_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    cancellation_seconds: Histogram = field(default_factory=lambda: Histogram(_STEP))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    iteration_host_seconds: Histogram = field(default_factory=lambda: Histogram(_STEP))
    #: figures read at snapshot time from whoever keeps them (the scheduler, the pool)
    sources: list[Callable[[], dict[str, float]]] = field(default_factory=list)
    #: None: the engine does not speculate, and says nothing of it
    speculation: SpeculationFigures | None = None

    def reject(self, code: str) -> None:
        """Count a request that was refused; any thread may."""
        with self.lock:
            self.rejected[code] = self.rejected.get(code, 0) + 1

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """Name and histogram, in a fixed order."""
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Histogram):
                yield name, value

    def _wasted(self) -> dict[str, int]:
        return {**self.wasted, "preempted": self.recomputed()}

    def snapshot(self) -> dict[str, Any]:
        """Every figure as a JSON-able dict; names without the prefix."""
        figures: dict[str, Any] = dict(self.counters)
        for source in self.sources:
            figures.update(source())
        figures["request_success_total"] = dict(self.finished)
        figures["wasted_tokens_total"] = self._wasted()
        figures["requests_rejected_total"] = dict(self.rejected)
        for name, histogram in self.histograms():
            figures[name] = histogram.snapshot()
        if self.speculation is not None:
            figures["speculation"] = self.speculation.snapshot()
        return figures

    def points(self) -> Iterator[Point]:
        """Counters and gauges with their labels, those of one name in a row; names without the prefix."""
        scalars: dict[str, float] = dict(self.counters)
        for source in self.sources:
            scalars.update(source())
        for name, value in scalars.items():
            yield name, {}, value
        for reason, count in self.finished.items():
            yield "request_success_total", {"finished_reason": reason}, count
        for reason, count in self._wasted().items():
            yield "wasted_tokens_total", {"reason": reason}, count
        for code, count in sorted(self.rejected.copy().items()):
            yield "requests_rejected_total", {"code": code}, count
        if self.speculation is not None:
            # the exposition format wants the points of one name together
            yield from sorted(self.speculation.points(), key=lambda point: _ORDER[point[0]])

    def series(self) -> Iterator[Point]:
        """The histograms as Prometheus stores them, for pages that know counters only; names without the prefix.

        ``NAME_bucket`` with the label ``le``, cumulative, then ``NAME_sum`` and ``NAME_count``.
        """
        for name, histogram in self.histograms():
            counts, total = list(histogram.counts), histogram.total
            below = 0
            for bound, count in zip((*histogram.bounds, "+Inf"), counts, strict=True):
                below += count
                yield f"{name}_bucket", {"le": str(bound)}, below
            yield f"{name}_sum", {}, total
            yield f"{name}_count", {}, below

    def prometheus_text(self) -> str:
        """The exposition format, version 0.0.4."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        register_prometheus(self, registry)
        return generate_latest(registry).decode()


def register_prometheus(metrics: Metrics, registry: Any = None) -> Any:
    """Add ``metrics`` to a ``prometheus_client`` registry (default: the global one); returns the collector."""
    import prometheus_client.core as core
    from prometheus_client import REGISTRY

    class _Collector:
        def collect(self) -> Iterator[Any]:
            for name, points in groupby(metrics.points(), key=lambda point: point[0]):
                kind = core.CounterMetricFamily if is_counter(name) else core.GaugeMetricFamily
                family = None
                for _, labels, value in points:
                    family = family or kind(PREFIX + name, _HELP[name], labels=list(labels))
                    family.add_metric(list(labels.values()), value)
                yield family
            for name, histogram in metrics.histograms():
                below, buckets = 0, []
                for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                    below += count
                    buckets.append((str(bound), below))
                yield core.HistogramMetricFamily(PREFIX + name, _HELP[name], buckets=buckets, sum_value=histogram.total)

    collector = _Collector()
    (registry or REGISTRY).register(collector)
    return collector
