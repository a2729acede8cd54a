"""A server and a clock that only computation moves: what the open loop measures is known beforehand."""

from __future__ import annotations

import heapq
import itertools


class SimulatedServer:
    """``slots`` requests at once, first come first served; a first token after ``prefill`` seconds and the others
    ``step`` apart. It is the clock too: sleeping delivers what is due until then.

    ``jam`` are seconds that the sender's thread is held up at its first sleep; ``refuse`` requests by number fail.
    """

    def __init__(self, slots=1, prefill=0.1, step=0.01, jam=0.0, refuse=()):
        self.time = 1000.0
        self._free = [self.time] * slots
        self._prefill, self._step, self._jam, self._refuse = prefill, step, jam, set(refuse)
        self._events, self._order, self._number = [], itertools.count(), itertools.count()
        self.sent = []

    def now(self):
        return self.time

    def sleep_until(self, moment):
        if self._jam:
            moment, self._jam = moment + self._jam, 0.0
        while self._events and self._events[0][0] <= moment:
            self._deliver()
        self.time = max(self.time, moment)

    def wait(self, event, seconds):
        end = self.time + seconds
        while self._events and self._events[0][0] <= end:
            self._deliver()
        return event.is_set()

    def send(self, prompt, max_tokens, timing, ended):
        self.sent.append((self.time, prompt, max_tokens))
        if next(self._number) in self._refuse:
            timing.error, timing.done = "TF-RUN-056: the queue is full", self.time
            ended.set()
            return
        begin = max(self.time, heapq.heappop(self._free))
        times = [begin + self._prefill + self._step * i for i in range(max_tokens)]
        heapq.heappush(self._free, times[-1])

        def end():
            timing.token_times, timing.done = times, times[-1]
            ended.set()

        heapq.heappush(self._events, (times[-1], next(self._order), end))

    def _deliver(self):
        moment, _, end = heapq.heappop(self._events)
        self.time = max(self.time, moment)
        end()
