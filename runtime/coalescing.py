"""Equal greedy requests in flight, answered once.

Policy: off unless a server is told so. Requests are equal when nothing that decides their answer or its form differs:
tokens of the prompt, sampling parameters, salt, priority, stream, interval, whether drafts may be made. Only greedy
ones without a deadline are looked at, whose answer is the engine's one answer. The first of them runs, the
others get its outputs under their own ids, and what it has said before they came as one output at once. A request that
leaves takes nothing from those who stay: the run goes on as long as somebody listens. The stepping thread's alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from runtime.admission import PreparedRequest
from runtime.merging import absorb, own_copy
from runtime.request import FinishReason, RequestOutput, SampleOutput


@dataclass(slots=True)
class _Run:
    """One request of the engine, named by the first who asked, and those who listen to it."""

    key: Hashable
    name: str
    listeners: list[str] = field(default_factory=list)
    so_far: RequestOutput | None = None


class Coalescer:
    """Who listens to which of the engine's requests; ids that it does not know are requests of their own."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, _Run] = {}
        self._by_name: dict[str, _Run] = {}
        self._of_listener: dict[str, _Run] = {}

    def join(self, prepared: PreparedRequest) -> tuple[bool, RequestOutput | None]:
        """Let a request listen to an equal one that runs.

        Returns:
            whether it does (else it has to run itself), and what was said so far, under its id.
        """
        key, request_id = _key(prepared), prepared.request.request_id
        assert request_id is not None
        if key is None:
            return False, None
        run = self._by_key.get(key)
        joins = run is not None
        if run is None:
            run = self._by_key[key] = self._by_name[request_id] = _Run(key, request_id)
        run.listeners.append(request_id)
        self._of_listener[request_id] = run
        if run.so_far is None:
            return joins, None
        return joins, replace(own_copy(run.so_far), request_id=request_id)

    def outputs(self, output: RequestOutput) -> Iterator[RequestOutput]:
        """An output of the engine as each of its listeners gets it."""
        run = self._by_name.get(output.request_id)
        if run is None:
            yield output
            return
        listeners = list(run.listeners)
        if output.finished:
            self._end(run)
        elif run.so_far is None:
            run.so_far = own_copy(output)
        else:
            absorb(run.so_far, output)
        for listener in listeners:
            yield output if listener == output.request_id else replace(output, request_id=listener)

    def leave(self, request_id: str) -> tuple[str | None, RequestOutput | None]:
        """A request that is cancelled.

        Returns:
            the engine's request to end; or, while others listen to it, None and the leaving one's last output.
        """
        run = self._of_listener.get(request_id)
        if run is None:
            return request_id, None
        if run.listeners == [request_id]:
            return run.name, None
        run.listeners.remove(request_id)
        del self._of_listener[request_id]
        last = RequestOutput(request_id, [], True, 0) if run.so_far is None else own_copy(run.so_far)
        counts = {sample.index: sample.num_tokens for sample in last.samples} or {0: 0}
        samples = [
            SampleOutput(index, num_tokens=count, finish_reason=FinishReason.CANCELLED)
            for index, count in counts.items()
        ]
        return None, replace(last, request_id=request_id, samples=samples, finished=True)

    def drop(self, request_id: str) -> str | None:
        """A request that hears nothing any more: the engine's request to end, None while others listen to it."""
        name, _ = self.leave(request_id)
        run = self._of_listener.get(request_id)
        if name is not None and run is not None:
            self._end(run)
        return name

    def _end(self, run: _Run) -> None:
        del self._by_key[run.key], self._by_name[run.name]
        for listener in run.listeners:
            del self._of_listener[listener]


def _key(prepared: PreparedRequest) -> Hashable | None:
    """What decides a request's answer; None where it is not one that is looked at."""
    request, params = prepared.request, prepared.request.params
    if not params.greedy or request.timeout is not None or params.n != 1:
        return None
    key = (
        prepared.prompt.tobytes(),
        replace(params, temperature=0.0, seed=None, guided=None),
        repr(params.guided),
        prepared.characters_removed,
        request.cache_salt,
        request.priority,
        request.stream,
        request.stream_interval,
        request.speculate,
    )
    try:
        hash(key)
    except TypeError:  # parameters of a caller in this process may hold lists
        return None
    return key
