"""Closed-loop load on an engine in this process: each of ``concurrency`` clients sends its next
request when its last one has finished, which is what perf_analyzer does against a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from evals.speed.latency import LevelResult, RequestTiming, summarize
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema import Bench, Slo

#: draft tokens of an answer and the accepted ones; None: the engine does not speculate
Drafts = tuple[int, int] | None


class LoadTarget(Protocol):
    """An engine that takes requests from any thread and calls back from its own."""

    def submit(
        self,
        prompt: str,
        max_tokens: int,
        on_tokens: Callable[[int], None],
        on_done: Callable[[str | None, Drafts], None],
    ) -> None:
        """Queue a request that generates exactly ``max_tokens``; ``on_done`` gets an error text or None, and drafts."""


def run_levels(
    target: LoadTarget, prompts: Sequence[str], asked: Bench, progress: Progress | None = None
) -> tuple[LevelResult, ...]:
    """Every concurrency level that is asked for, from the lowest, once; raises as :func:`run_level`."""
    return tuple(
        run_level(
            target,
            prompts,
            concurrency=level,
            requests=asked.requests_per_level,
            max_tokens=asked.max_tokens,
            slo=asked.slo,
            progress=progress,
        )
        for level in sorted(set(asked.concurrency))
    )


def run_level(
    target: LoadTarget,
    prompts: Sequence[str],
    *,
    concurrency: int,
    requests: int,
    max_tokens: int,
    slo: Slo | None = None,
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> LevelResult:
    """One concurrency level.

    Raises:
        ForgeError: TF-BEN-003 when the level does not end within ``timeout`` seconds.
    """
    report = progress or SilentProgress()
    total = max(requests, concurrency)
    report.start(f"concurrency {concurrency}: {total} requests", total=total)
    timings: list[RequestTiming] = []
    lock = threading.Lock()
    finished = threading.Event()
    state = {"sent": 0, "done": 0}

    def send_next() -> None:
        with lock:
            index = state["sent"]
            if index >= total:
                return
            state["sent"] += 1
            timing = RequestTiming(sent=time.perf_counter())
            timings.append(timing)

        def on_tokens(count: int) -> None:
            timing.token_times.extend([time.perf_counter()] * count)

        def on_done(error: str | None, drafts: Drafts = None) -> None:
            timing.done = time.perf_counter()
            timing.error = error
            if drafts is not None:
                timing.drafted, timing.accepted = drafts
            report.advance()
            with lock:
                state["done"] += 1
                last = state["done"] == total
            if last:
                finished.set()
            else:
                send_next()

        try:
            target.submit(prompts[index % len(prompts)], max_tokens, on_tokens, on_done)
        except ForgeError as error:
            on_done(str(error))

    for _ in range(concurrency):
        send_next()
    if not finished.wait(timeout):
        raise ForgeError(
            "TF-BEN-003",
            "the load test did not end in time",
            numbers={"concurrency": concurrency, "done": state["done"], "requests": total, "timeout_s": timeout},
            remedies=["fewer bench.requests_per_level", "smaller bench.max_tokens"],
        )
    return summarize(concurrency, timings, slo)
