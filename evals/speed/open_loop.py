"""Open-loop load: every request is sent when it is due, whatever has come back.

Latency counts from when a request was due, so a sender that falls behind makes nothing look faster; how late it was
is measured, and a run whose sender was late says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evals.speed.latency import RequestTiming, meets
from evals.speed.schedule import Due
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema_bench import Slo

#: seconds after the last request was due in which all must have ended
PATIENCE = 600.0


class OpenTarget(Protocol):
    """What takes requests at any time, from the sender's thread, and answers on a thread of its own."""

    def send(self, prompt: str, max_tokens: int, timing: RequestTiming, ended: Ended) -> None:
        """Send one request of exactly ``max_tokens`` greedy tokens.

        ``timing`` gets the time of each token, ``done``, ``error`` (``CODE: text``) and parts; then ``ended.set()``
        is called, once. ``timing.late`` grows by what passes until it is really sent.
        """


class Clock(Protocol):
    """Time as the sender sees it, in seconds; a test has one of its own."""

    def now(self) -> float:
        """The time."""

    def sleep_until(self, moment: float) -> None:
        """Return at ``moment``, or at once when it has passed."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Whether the event came within so many seconds."""


class RealClock:
    """The monotonic clock on which answers are timed too."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, moment: float) -> None:
        if (rest := moment - time.perf_counter()) > 0:
            time.sleep(rest)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


class Ended:
    """Counts requests that ended; the last one sets ``all``, which waits until sending is over."""

    def __init__(self, progress: Progress) -> None:
        self.all = threading.Event()
        self._lock, self._progress = threading.Lock(), progress
        self._done = 0
        self._expected: int | None = None

    def set(self) -> None:
        with self._lock:
            self._done += 1
            self._progress.advance()
            if self._done == self._expected:
                self.all.set()

    def expect(self, count: int) -> None:
        """No more than ``count`` were sent."""
        with self._lock:
            self._expected = count
            if self._done >= count:
                self.all.set()

    @property
    def done(self) -> int:
        return self._done


@dataclass(frozen=True)
class OpenRun:
    """What came of a schedule: a timing for each request that was sent, and those left unsent after a verdict."""

    timings: tuple[RequestTiming, ...]
    planned: int
    span: float


def send_on_schedule(
    target: OpenTarget,
    schedule: Sequence[Due],
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
    title: str = "open loop",
    patience: float = PATIENCE,
    stop_beyond: tuple[Slo, int] | None = None,
) -> OpenRun:
    """Send a schedule and wait until all has ended.

    Args:
        stop_beyond: limits and a number of requests: once more than so many are known to miss the limits, what is not
            sent yet is left unsent (a search for a rate has its verdict then).

    Raises:
        ForgeError: TF-BEN-008 not all ended within ``patience`` seconds after the last was due.
    """
    watch = clock or RealClock()
    report = progress or SilentProgress()
    report.start(f"{title}: {len(schedule)} requests", total=len(schedule))
    ended = Ended(report)
    begin = watch.now()
    timings: list[RequestTiming] = []
    unjudged: list[RequestTiming] = []
    missed = 0
    for one in schedule:
        watch.sleep_until(begin + one.at)
        if stop_beyond is not None:
            judged = [timing for timing in unjudged if timing.done is not None]
            unjudged = [timing for timing in unjudged if timing.done is None]
            missed += sum(not meets(timing, stop_beyond[0]) for timing in judged)
            if missed > stop_beyond[1]:
                break
        timing = RequestTiming(sent=begin + one.at)
        timing.late = max(0.0, watch.now() - timing.sent)
        timings.append(timing)
        unjudged.append(timing)
        try:
            target.send(one.prompt, one.max_tokens, timing, ended)
        except ForgeError as error:
            timing.error, timing.done = str(error), watch.now()
            ended.set()
    ended.expect(len(timings))
    if not watch.wait(ended.all, patience):
        raise ForgeError(
            "TF-BEN-008",
            "requests that arrived by themselves did not all end in time",
            asked=title,
            numbers={"sent": len(timings), "ended": ended.done, "patience_s": patience},
            why="At a rate beyond what is served the queue grows for as long as requests arrive.",
            remedies=["lower bench.arrivals.rate", "fewer bench.arrivals.requests, or fewer seconds"],
        )
    return OpenRun(tuple(timings), len(schedule), schedule[len(timings) - 1].at if timings else 0.0)
