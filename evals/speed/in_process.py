"""The engine behind its stepping thread, as both load generators drive it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from evals.speed.latency import RequestTiming
from evals.speed.load import Drafts
from evals.speed.open_figures import split_ttft
from evals.speed.open_loop import Ended

if TYPE_CHECKING:
    from runtime.offline import Engine
    from runtime.request import RequestOutput


class InProcess:
    """An engine in this process."""

    def __init__(self, engine: Engine) -> None:
        from runtime.serving import AsyncEngine

        self._engine = AsyncEngine(engine.core)

    def submit(
        self,
        prompt: str,
        max_tokens: int,
        on_tokens: Callable[[int], None],
        on_done: Callable[[str | None, Drafts], None],
    ) -> None:
        """Queue a greedy request of exactly ``max_tokens`` tokens."""

        def receive(output: RequestOutput) -> None:
            count = sum(len(sample.token_ids) for sample in output.samples)
            if count:
                on_tokens(count)
            if output.finished:
                on_done(None if output.error is None else str(output.error.get("message")), self._drafts(output))

        self._submit(prompt, max_tokens, receive)

    def send(self, prompt: str, max_tokens: int, timing: RequestTiming, ended: Ended) -> None:
        """The same for a request that is due; what submitting takes is its tokenizing."""

        def receive(output: RequestOutput) -> None:
            now = time.perf_counter()
            timing.token_times.extend([now] * sum(len(sample.token_ids) for sample in output.samples))
            if not output.finished:
                return
            if output.error is not None:
                timing.error = f"{output.error.get('code')}: {output.error.get('message')}"
            if (found := self._drafts(output)) is not None:
                timing.drafted, timing.accepted = found
            times = output.times
            if times is not None and times.first_scheduled is not None and times.first_token is not None:
                split_ttft(timing, times.arrival, times.first_scheduled, times.first_token)
            timing.done = now
            ended.set()

        before = time.perf_counter()
        self._submit(prompt, max_tokens, receive)
        timing.tokenize = time.perf_counter() - before

    def warm_up(self, prompt: str, max_tokens: int) -> None:
        """One request that nobody times: first-touch costs belong to no level."""
        done = threading.Event()
        self.submit(prompt, max_tokens, lambda count: None, lambda error, drafts: done.set())
        done.wait(120)

    def close(self) -> None:
        """End the stepping thread; the engine is closed with it."""
        self._engine.shutdown(5.0)

    def _submit(self, prompt: str, max_tokens: int, receive: Callable[[RequestOutput], None]) -> None:
        from runtime.request import Request
        from runtime.sampling.params import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, temperature=0.0)
        self._engine.submit(Request(prompt=prompt, params=params, stream=True), receive)

    def _drafts(self, output: RequestOutput) -> Drafts:
        if not self._engine.speculates or not output.samples:
            return None
        return output.samples[0].num_draft_tokens, output.samples[0].num_accepted_tokens
