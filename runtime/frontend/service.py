"""Requests of Triton's Python backend on their way through the engine and back.

A client's request may hold several prompts and ask for several samples of each: every prompt is a request of the
engine, and every piece of news is a response of its own, until the last one ends them all. A fault of one prompt ends
the client's request. In a model that is not decoupled the one response has to be the whole answer. The stepping thread
leaves what is new in an outbox (:mod:`runtime.frontend.outbox`), whose thread sends it.

A client's request id begins the ids of its prompts in the engine, so that log lines name it.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from runtime import errors
from runtime.frontend.answering import Answer
from runtime.frontend.asking import Asked, Defaults, Encode, read
from runtime.frontend.names import refuse_unknown
from runtime.frontend.outbox import Box, Outbox
from runtime.frontend.request_log import RequestLog
from runtime.frontend.server_log import NAME, shown_id
from runtime.request import Request, RequestOutput
from runtime.serving import AsyncEngine
from runtime.triton_channel import Channel
from trtforge.ground.drain_notice import DrainNotice
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.templates.chat_workers import MOST, MOST_SLOW

log = logging.getLogger(NAME)
#: a parameter that NVIDIA's token client sends beside its tensor ``streaming``
TOKEN_CLIENT_PARAMETERS = frozenset({"Streaming"})


class Service:
    """The engine behind one Triton model.

    Args:
        engine: what answers.
        backend: the module ``triton_python_backend_utils``.
        inputs: names of the model's inputs.
        exclude_default: what ``defaults`` says of the prompt in the answer, from models written before there were any.
        decoupled: whether a request may have more than one response.
        request_log: gets a line a request; None: nothing does.
        defaults: what holds for a client that does not say.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        backend: Any,
        *,
        inputs: Collection[str],
        exclude_default: bool = True,
        decoupled: bool = True,
        defaults: Defaults | None = None,
        request_log: RequestLog | None = None,
    ) -> None:
        self._engine = engine
        self._backend = backend
        self._inputs = inputs
        self._defaults = defaults or Defaults(exclude_input=exclude_default)
        self._decoupled = decoupled
        self._notice = DrainNotice()
        self._lock = threading.Lock()
        self._live: set[_Job] = set()
        self._numbers = itertools.count()
        self._outbox = outbox = Outbox()
        self._request_log = request_log
        engine.core.metrics.sources.append(lambda: {"outputs_joined_total": outbox.joins})
        self._chats = ThreadPoolExecutor(MOST + MOST_SLOW, "chats")

    def take(self, request: Any) -> None:
        """Submit one of Triton's requests; whatever is wrong with it is its answer."""
        client = Channel(request.get_response_sender(), self._backend)
        self._answering(client, request.request_id(), partial(self._submit, request, client))

    def idle(self) -> bool:
        """Whether every client that was there at the last :meth:`watch` has its answer."""
        with self._lock:
            return all(job.client.ended for job in self._live)

    def close(self) -> None:
        """Wait for the chats that are being rendered; nothing is taken any more."""
        self._chats.shutdown()

    def flush(self, timeout: float = 5.0) -> None:
        """Send what the engine still had to say; after its shutdown."""
        self._outbox.close(timeout)
        if self._request_log is not None:
            self._request_log.close(timeout)

    def watch(self) -> None:
        """Cancel the requests whose clients have gone, and end all of them when a drain's time is over."""
        with self._lock:
            self._live = {job for job in self._live if not job.client.ended}
            live = list(self._live)
        for job in live:
            if job.client.gone():
                job.cancel()
        if live and self._notice.over():
            self._engine.end(errors.drain_ended())

    def _submit(self, request: Any, client: Channel) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        by_tokens = "input_ids" in tensors
        also = TOKEN_CLIENT_PARAMETERS if by_tokens else frozenset()
        refuse_unknown(request.parameters(), self._inputs, also=also)
        if "stop" in tensors and tensors["stop"].any():
            self._stop(request.request_id())
            client.end(self._nothing())
            return
        asked = read(
            tensors,
            eos_token_ids=self._engine.eos_token_ids,
            encode=self._encode(),
            defaults=self._defaults,
            triton_timeout=request.timeout() / 1e6 or None,
        )
        if by_tokens:
            _agree(request.parameters(), asked)
        if not self._decoupled:
            _one_response(asked)
        name = request.request_id()
        if name:
            asked = [replace(one, request=replace(one.request, request_id=self._engine_id(name))) for one in asked]
        wanted = frozenset(request.requested_output_names())
        job = _Job(client, self._engine, name, len(asked))
        block_size = self._engine.core.executor.block_size
        speculates = self._engine.speculates
        answers = [Answer(one, row, wanted, block_size, speculates=speculates) for row, one in enumerate(asked)]
        pairs = [(one.request, self._deliverer(job, answer)) for one, answer in zip(asked, answers, strict=True)]
        start = partial(self._start, job, pairs)
        if any(one.request.messages is not None for one in asked):
            # a chat waits for its template, and nothing else waits for the chat
            self._chats.submit(self._answering, client, name, start)
        else:
            start()

    def _start(self, job: _Job, pairs: list[tuple[Request, Callable[[RequestOutput], None]]]) -> None:
        job.keys = self._engine.submit_all(pairs)
        with self._lock:
            self._live.add(job)

    def _engine_id(self, name: str) -> str:
        """An id in the engine that begins with the client's, which several requests may share."""
        return f"{shown_id(name)}#{next(self._numbers)}"

    def _encode(self) -> Encode | None:
        tokenizer = self._engine.core.tokenizer
        return None if tokenizer is None else lambda text: tokenizer.encode(text, add_special_tokens=False)

    def _deliverer(self, job: _Job, answer: Answer) -> Callable[[RequestOutput], None]:
        def send(output: RequestOutput) -> None:
            if job.client.ended:  # another prompt failed, or the client has gone
                job.cancel()
                return
            if output.error is not None:
                log.warning("%s failed: %s: %s", output.request_id, output.error["code"], output.error["message"][:200])
                job.client.fail(output.error)
                job.cancel()
                return
            job.open -= output.finished
            responses = list(answer.responses(output))
            for at, arrays in enumerate(responses):
                tensors = [self._backend.Tensor(name, array) for name, array in arrays.items()]
                response = self._backend.InferenceResponse(output_tensors=tensors)
                if job.open or at < len(responses) - 1:
                    job.client.send(response)  # raises when the client is gone: the engine then cancels the request
                else:
                    job.client.end(response)
            if not job.open:
                job.client.end(self._nothing())

        put = partial(self._outbox.put, Box(send, job.cancel))
        return put if self._request_log is None else self._request_log.follow(job.request_id, put)

    def _answering(self, client: Channel, name: str, work: Callable[[], None]) -> None:
        """Do ``work``; whatever goes wrong, the client gets an answer, and it is counted and logged."""
        try:
            work()
            return
        except ForgeError as error:
            told, level = error.to_json(), logging.WARNING if error.exit_code is ExitCode.INTERNAL else logging.INFO
        except Exception as error:
            told, level = {"code": "TF-RUN-199", "message": f"{type(error).__name__}: {error}"}, logging.ERROR
        self._engine.core.metrics.reject(told["code"])
        if self._request_log is not None:
            self._request_log.refused(name, told["code"])
        log.log(level, "request %r refused: %s: %s", shown_id(name), told["code"], told["message"][:200])
        client.fail(told)

    def _nothing(self) -> Any:
        """A response without outputs: a model that is not decoupled has to give one."""
        return self._backend.InferenceResponse(output_tensors=[])

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise ForgeError(
                "TF-RUN-119",
                "stop needs the id of the request that it ends",
                asked="stop: true",
                why="requests are told apart by their ids",
                remedies=["send both requests with the same request id", "cancel the request instead"],
            )
        with self._lock:
            named = [job for job in self._live if job.request_id == request_id]
        for job in named:
            job.cancel()


class _Job:
    """One of Triton's requests: its way back, and what runs for it. ``open`` is the sender thread's alone."""

    def __init__(self, client: Channel, engine: AsyncEngine, request_id: str, prompts: int) -> None:
        self.client = client
        self.request_id = request_id
        self.keys: list[str] = []
        self.open = prompts
        self._engine = engine

    def cancel(self) -> None:
        for key in self.keys:
            self._engine.cancel(key)


def _agree(parameters: str, asked: list[Asked]) -> None:
    """Refuse a parameter ``Streaming`` that says something else than the tensor."""
    given: Mapping[str, Any] = json.loads(parameters or "{}")
    stream = any(one.request.stream for one in asked)
    if "Streaming" in given and bool(given["Streaming"]) != stream:
        raise ForgeError(
            "TF-RUN-108",
            f"the parameter Streaming is {given['Streaming']} and the tensor says {stream}",
            asked=f"Streaming: {given['Streaming']}",
            why="the tensor decides, and both should say the same",
            remedies=["leave the parameter out", f"streaming: {str(bool(given['Streaming'])).lower()}"],
        )


def _one_response(asked: list[Asked]) -> None:
    """Refuse what takes more than one response."""
    samples = asked[0].request.params.n
    faults = {
        "stream": any(one.request.stream for one in asked),
        f"{len(asked)} prompts": len(asked) > 1,
        f"num_return_sequences {samples}": samples > 1,
    }
    named = [name for name, there in faults.items() if there]
    if named:
        raise ForgeError(
            "TF-RUN-120",
            f"not in a model that is not decoupled: {', '.join(named)}",
            asked=", ".join(named),
            why="with triton.decoupled: false, for plain infer calls, a request has one response",
            remedies=["one prompt, one sample, stream: false", "write the repository with triton.decoupled: true"],
        )
