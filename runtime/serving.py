"""The engine core behind a thread: many clients submit, one thread steps.

Policy: only the stepping thread touches the core. Clients leave requests and cancellations in an inbox and
are told through callbacks, on the stepping thread, so a callback must be quick and must not block on the
engine. A callback that raises means that its client is gone: the request is cancelled and its blocks are free
before the next step. Every submitted request gets exactly one finished output (or its callback raised):
from the core, or, when the engine dies, from here. Nothing ever waits on an engine that is dead.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime import errors
from runtime.coalescing import Coalescer
from runtime.engine import EngineConfig, EngineCore, PreparedRequest
from runtime.executors.base import ExecutorLimits
from runtime.request import FinishReason, Request, RequestOutput, SampleOutput
from runtime.speculation.draft import Point
from runtime.speculation.figures import choice_points
from trtforge.ground.errors import ForgeError

log = logging.getLogger("trtforge.runtime")

Callback = Callable[[RequestOutput], None]

#: Steps that may fail in a row before the engine calls itself dead.
MAX_FAILURES = 3
#: how old the policy's explanation may be
EXPLAIN_SECONDS = 1.0


class AsyncEngine:
    """Thread-safe front of an :class:`EngineCore`; starts its thread at once.

    Args:
        core: owned by this object from now on.
        max_failures: consecutive failed steps after which the engine is dead.
        name: of the thread.
    """

    def __init__(self, core: EngineCore, *, max_failures: int = MAX_FAILURES, name: str = "trtforge-engine") -> None:
        self.core = core
        self._max_failures = max_failures
        self._changed = threading.Condition()
        self._inbox: deque[PreparedRequest | str] = deque()
        self._leaving: dict[str, float] = {}  # when cancellations were asked for
        self._arriving = 0  # requests in the inbox
        self._callbacks: dict[str, Callback] = {}
        self._coalescer = Coalescer() if core.config.coalesce else None
        self._ids = itertools.count()
        self._draining = False
        self._stopping = False
        self._ending: ForgeError | None = None
        self._death: ForgeError | None = None
        self._explanation: dict[str, Any] = {}
        self._explain_at = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        engine_dir: Path | str,
        threads: int | None = None,
        *,
        device: str = "cpu",
        num_blocks: int | None = None,
        config: EngineConfig | None = None,
    ) -> AsyncEngine:
        """Load an engine directory and start stepping; arguments and errors of ``Engine.load``."""
        from runtime.offline import Engine

        return cls(Engine.load(engine_dir, threads, device=device, num_blocks=num_blocks, config=config).core)

    @property
    def limits(self) -> ExecutorLimits:
        """The limits that requests are held against."""
        return self.core.limits

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's end-of-sequence tokens."""
        return self.core.executor.eos_token_ids

    @property
    def speculates(self) -> bool:
        """Whether the engine drafts for requests."""
        return self.core.metrics.speculation is not None

    # -- any thread ----------------------------------------------------------------------------------

    def submit(self, request: Request, callback: Callback) -> str:
        """Queue a request; ``callback`` gets its outputs. Returns the request's id.

        Raises:
            ForgeError: what ``EngineCore.prepare`` raises; ``TF-RUN-053`` id in use, ``TF-RUN-056`` queue full,
                ``TF-RUN-057`` shutting down, ``TF-RUN-058`` dead.
        """
        return self.submit_all([(request, callback)])[0]

    def submit_all(self, pairs: Sequence[tuple[Request, Callback]]) -> list[str]:
        """Queue several requests, or none of them; ids and errors as of :meth:`submit`."""
        self._refuse_if_closed()
        # Tokenizing and grammar compilation happen here, on the client's time.
        prepared = [self.core.prepare(request) for request, _ in pairs]
        with self._changed:
            self._refuse_if_closed()
            given = [request.request_id for request, _ in pairs if request.request_id is not None]
            for at, name in enumerate(given):
                if name in self._callbacks or name in given[:at]:
                    raise errors.duplicate_id(name)
            waiting = self._arriving + len(self.core.scheduler.waiting)
            if waiting + len(pairs) > self.core.config.max_waiting:
                raise errors.queue_full(waiting, self.core.config.max_waiting)
            ids = []
            for one, (request, callback) in zip(prepared, pairs, strict=True):
                request_id = request.request_id
                while request_id is None:
                    request_id = f"async-{next(self._ids)}"
                    request_id = None if request_id in self._callbacks or request_id in given else request_id
                self._callbacks[request_id] = callback
                self._inbox.append(replace(one, request=replace(request, request_id=request_id)))
                self._arriving += 1
                ids.append(request_id)
            self._changed.notify_all()
        return ids

    def cancel(self, request_id: str) -> bool:
        """Ask for a request to end; its callback gets a final output ``cancelled``. False: it is not live."""
        with self._changed:
            if request_id not in self._callbacks or self._death is not None:
                return False
            self._inbox.append(request_id)
            self._leaving.setdefault(request_id, time.monotonic())
            self._changed.notify_all()
        return True

    def stream(self, request: Request) -> Iterator[RequestOutput]:
        """Submit and iterate over the outputs in the calling thread; closing the iterator cancels.

        Raises:
            ForgeError: what :meth:`submit` raises, at the call.
        """
        outputs: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        request_id = self.submit(request, outputs.put)

        def iterate() -> Iterator[RequestOutput]:
            finished = False
            try:
                while not finished:
                    output = outputs.get()
                    finished = output.finished
                    yield output
            finally:
                if not finished:
                    self.cancel(request_id)

        return iterate()

    def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for the live ones; False when ``timeout`` seconds were not enough."""
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: not self._callbacks or self._death is not None, timeout)

    def end(self, error: ForgeError) -> None:
        """Refuse new requests and end the live ones with ``error``, which their callbacks get before the next step."""
        with self._changed:
            self._draining = True
            self._ending = error
            self._changed.notify_all()

    def shutdown(self, timeout: float | None = 30.0) -> bool:
        """Drain for up to ``timeout`` seconds, cancel what is left, stop the thread, release the engine's memory.

        Returns whether the thread ended; False only if a step hangs past ``timeout`` again.
        """
        if threading.current_thread() is self._thread:
            # From a callback: the thread cannot wait for itself.
            with self._changed:
                self._draining = self._stopping = True
            return False
        self.drain(timeout)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self.core.close()
        return True

    @property
    def alive(self) -> bool:
        return self._death is None and self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.alive and not self._draining

    @property
    def death(self) -> ForgeError | None:
        """Why the engine is dead, if it is."""
        return self._death

    def stats(self) -> dict[str, Any]:
        """The core's metrics, right to within a step."""
        return self.core.stats()

    def points(self) -> Iterator[Point]:
        """The core's counters and gauges with their labels, likewise, and what the policy of drafts would choose."""
        yield from self.core.metrics.points()
        yield from choice_points(self._explained())

    def _explained(self) -> dict[str, Any]:
        """The policy's explanation, a new one every :data:`EXPLAIN_SECONDS`."""
        if self.core.speculator is not None and time.monotonic() >= self._explain_at:
            self._explain_at = time.monotonic() + EXPLAIN_SECONDS
            # the stepping thread may add a source or a batch size meanwhile: the last explanation then stays
            with contextlib.suppress(RuntimeError):
                self._explanation = self.core.speculator.policy.explain()
        return self._explanation

    # -- the stepping thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._work():
                pass
        except BaseException as error:
            log.exception("the engine thread failed")
            self._die(errors.step_failed(error))

    def _work(self) -> bool:
        """One turn: inbox, step, callbacks. False ends the thread."""
        with self._changed:
            while not self._inbox and not self.core.has_unfinished():
                self._ending = None  # nobody is left to be told
                if self._stopping:
                    return False
                self._changed.wait()
            commands = list(self._inbox)
            self._inbox.clear()
            stopping, ending = self._stopping, self._ending
            self._ending = None
        for command in commands:
            self._obey(command)
        if ending is not None:
            for output in self.core.fail_all(ending):
                self._deliver(output)
            return True
        if stopping:
            for request_id in self.core.live_ids():
                self._deliver(self.core.abort(request_id))
            return True
        for output in self.core.step():
            self._deliver(output)
        if self.core.consecutive_failures >= self._max_failures:
            self._die(errors.engine_dead("steps fail in a row", self.core.consecutive_failures))
            return False
        return True

    def _obey(self, command: PreparedRequest | str) -> None:
        if isinstance(command, str):
            ends, last = (command, None) if self._coalescer is None else self._coalescer.leave(command)
            if last is not None:
                self._tell(last)
            if ends is not None:
                output = self.core.abort(ends)
                asked = self._leaving.pop(command, None)
                if output is not None and asked is not None:
                    self.core.metrics.cancellation_seconds.observe(time.monotonic() - asked)
                self._deliver(output)
            self._leaving.pop(command, None)
            return
        request_id = command.request.request_id
        assert request_id is not None
        try:
            if not self._joins(command):
                self.core.add_request(command)
        except ForgeError as error:
            self._deliver(_failed(request_id, error, len(command.prompt)))
        except Exception as error:  # whatever it is, it is this request's and no other's
            log.exception("request %s cannot be added", request_id)
            self._deliver(_failed(request_id, errors.cannot_add(error), len(command.prompt)))
        finally:
            with self._changed:
                self._arriving -= 1

    def _joins(self, command: PreparedRequest) -> bool:
        """Whether a request gets the answer of an equal one that runs; it is told what that one said so far."""
        if self._coalescer is None:
            return False
        joins, so_far = self._coalescer.join(command)
        self.core.metrics.counters["requests_coalesced_total"] += joins
        self.core.metrics.counters["coalesced_prompt_tokens_total"] += len(command.prompt) if joins else 0
        if so_far is not None:
            self._tell(so_far)
        return joins

    def _deliver(self, output: RequestOutput | None) -> None:
        """Hand an output of the core to whoever asked for it."""
        if output is None:
            return
        if self._coalescer is None:
            self._tell(output)
            return
        for one in self._coalescer.outputs(output):
            self._tell(one)

    def _tell(self, output: RequestOutput) -> None:
        callback = self._callbacks.get(output.request_id)
        if callback is None:
            return
        gone = False
        try:
            callback(output)
        except Exception:
            log.warning("client of %s is gone; cancelling", output.request_id, exc_info=True)
            gone = True
            ends = output.request_id if self._coalescer is None else self._coalescer.drop(output.request_id)
            if ends is not None:
                self.core.abort(ends)
        if output.finished or gone:
            with self._changed:
                self._callbacks.pop(output.request_id, None)
                self._changed.notify_all()

    def _die(self, error: ForgeError) -> None:
        with self._changed:
            self._death = error
            orphans = list(self._callbacks.items())
            self._callbacks.clear()
            self._inbox.clear()
            self._arriving = 0
            self._changed.notify_all()
        for request_id, callback in orphans:
            try:
                callback(_failed(request_id, error, 0))
            except Exception:
                log.warning("client of %s is gone", request_id, exc_info=True)
        log.error("engine dead: %s", error)

    def _refuse_if_closed(self) -> None:
        if self._death is not None:
            raise errors.engine_dead(self._death.message, self.core.consecutive_failures)
        if self._draining or self._stopping:
            raise errors.shutting_down()


def _failed(request_id: str, error: ForgeError, prompt_tokens: int) -> RequestOutput:
    sample = SampleOutput(0, finish_reason=FinishReason.ERROR)
    return RequestOutput(request_id, [sample], True, prompt_tokens, error=error.to_json())
