"""A model of a Triton server as a target of the open loop: a gRPC stream of its own for each request.

One thread runs all streams. A stream of its own gives every error its request; the connection is shared.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from evals.speed.latency import RequestTiming
from evals.speed.open_figures import split_ttft
from evals.speed.open_loop import Ended
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress

_STAMPS = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns")


class ServedTarget:
    """``model`` on the server at ``grpc_url``.

    Raises:
        ForgeError: TF-BEN-009 no server answers there, or it has no such model.
    """

    def __init__(self, grpc_url: str, model: str) -> None:
        import tritonclient.grpc as grpc
        from tritonclient.utils import InferenceServerException

        try:
            with grpc.InferenceServerClient(grpc_url) as client:
                config = client.get_model_config(model).config
        except InferenceServerException as error:
            raise ForgeError(
                "TF-BEN-009",
                f"no server at {grpc_url} serves {model}",
                asked=f"--url {grpc_url} --model {model}",
                why=str(error),
                remedies=["the gRPC port that trtforge serve prints", "trtforge bench BUNDLE starts a server"],
            ) from None
        self._url, self._model = grpc_url, model
        self._streams = bool(config.model_transaction_policy.decoupled)
        self._speculates = "speculation" in config.parameters
        self._tells = any(tensor.name == "return_perf_metrics" for tensor in config.input)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="open-loop", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()

    def send(self, prompt: str, max_tokens: int, timing: RequestTiming, ended: Ended) -> None:
        """Send one request; the time until its stream is open counts as the sender's."""
        inputs = self._inputs(prompt, max_tokens)

        def begin() -> None:
            task = self._loop.create_task(self._ask(inputs, max_tokens, timing, ended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(begin)

    def warm_up(self, prompt: str, max_tokens: int) -> None:
        """One request that nobody times: it opens the connection."""
        ended = Ended(SilentProgress())
        ended.expect(1)
        self.send(prompt, max_tokens, RequestTiming(sent=time.perf_counter()), ended)
        ended.all.wait(120)

    def close(self) -> None:
        """Withdraw what still runs and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> None:
        import tritonclient.grpc.aio as aio

        self._client = aio.InferenceServerClient(self._url)

    async def _end(self) -> None:
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.close()

    async def _ask(self, inputs: list[Any], max_tokens: int, timing: RequestTiming, ended: Ended) -> None:
        from tritonclient.utils import InferenceServerException

        async def once() -> AsyncIterator[dict[str, Any]]:
            timing.late = max(timing.late, time.perf_counter() - timing.sent)
            yield {"model_name": self._model, "inputs": inputs}

        try:
            async for result, error in self._client.stream_infer(once()):
                if error is not None:
                    raise error
                self._take(result, timing, max_tokens)
            if timing.error is None and len(timing.token_times) != max_tokens:
                timing.error = f"{len(timing.token_times)} of {max_tokens} tokens came back"
        except InferenceServerException as error:
            timing.error = str(error)
        except Exception as error:  # whatever a broken connection raises is this request's failure
            timing.error = f"{type(error).__name__}: {error}"
        finally:
            timing.done = time.perf_counter()
            ended.set()

    def _take(self, result: Any, timing: RequestTiming, max_tokens: int) -> None:
        """One response: its tokens by the model's own count so far, and at the end the engine's times."""
        now = time.perf_counter()
        count = _number(result, "num_output_tokens")
        if count is None:
            return
        timing.token_times += [now] * max(0, min(count, max_tokens) - len(timing.token_times))
        if count < max_tokens:
            return
        if self._speculates:
            drafted = _number(result, "total_draft_tokens")
            accepted = _number(result, "total_accepted_draft_tokens")
            if drafted is not None and accepted is not None:
                timing.drafted, timing.accepted = drafted, accepted
        if self._tells:
            stamps = [_number(result, name) for name in _STAMPS]
            if None not in stamps:
                split_ttft(timing, *(float(stamp or 0) / 1e9 for stamp in stamps))

    def _inputs(self, prompt: str, max_tokens: int) -> list[Any]:
        import tritonclient.grpc as grpc

        values: dict[str, tuple[str, Any]] = {
            "text_input": ("BYTES", np.array([[prompt.encode()]], dtype=np.object_)),
            "max_tokens": ("INT32", np.array([[max_tokens]], dtype=np.int32)),
            "min_tokens": ("INT32", np.array([[max_tokens]], dtype=np.int32)),
            "stream": ("BOOL", np.array([[self._streams]])),
            "exclude_input_in_output": ("BOOL", np.array([[True]])),
        }
        if self._tells:
            values["return_perf_metrics"] = ("BOOL", np.array([[True]]))
        tensors = []
        for name, (kind, array) in values.items():
            tensor = grpc.InferInput(name, list(array.shape), kind)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        return tensors


def _number(result: Any, name: str) -> int | None:
    array = result.as_numpy(name)
    return None if array is None or not array.size else int(array.reshape(-1)[0])
