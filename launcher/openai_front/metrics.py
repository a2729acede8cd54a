"""The front's own figures, in a registry of their own; shown behind Triton's page."""

from __future__ import annotations

from launcher.openai_front.answers import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Figures:
    """Counters, gauges and histograms (``trtforge_openai_…``)."""

    def __init__(self, model: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._model = model

        def named(name: str) -> str:
            return f"trtforge_openai_{name}"

        self._requests = Counter(
            named("requests"), "Requests by route and status", ["model", "route", "status"], registry=self.registry
        )
        self._refusals = Counter(named("refusals"), "Refusals by code", ["model", "code"], registry=self.registry)
        self._tokens = Counter(
            named("tokens"), "Tokens of prompts, of those found in the cache, of answers", ["model", "kind"],
            registry=self.registry,
        )  # fmt: skip
        self._gone = Counter(
            named("disconnects"), "Clients that went before their answer", ["model"], registry=self.registry
        )
        self._running = Gauge(named("in_flight"), "Requests under way", ["model"], registry=self.registry)
        self._first = Histogram(
            named("time_to_first_token_seconds"), "From a request to its first token", ["model"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._whole = Histogram(
            named("request_seconds"), "From a request to the end of its answer", ["model", "route"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip

    def answered(self, route: str, status: int, code: str | None, seconds: float) -> None:
        """A response went out."""
        self._requests.labels(self._model, route, str(status)).inc()
        self._whole.labels(self._model, route).observe(seconds)
        if code is not None:
            self._refusals.labels(self._model, code).inc()

    def running(self, number: int) -> None:
        self._running.labels(self._model).set(number)

    def began(self, seconds: float) -> None:
        """The first token of a request came."""
        self._first.labels(self._model).observe(seconds)

    def left(self) -> None:
        """A client went before its answer was whole."""
        self._gone.labels(self._model).inc()

    def used(self, usage: Usage) -> None:
        """What a request came to."""
        for kind, count in (
            ("prompt", usage.prompt),
            ("cached", sum(usage.cached.values())),
            ("completion", usage.completion),
        ):
            self._tokens.labels(self._model, kind).inc(count)

    def page(self) -> bytes:
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry))
