"""A small streaming client over tritonclient for the smoke test and for ``trtforge serve``'s checks."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from trtforge.ground.errors import ForgeError

_DTYPES: dict[str, tuple[str, Any]] = {
    "text_input": ("BYTES", np.object_),
    "stop_words": ("BYTES", np.object_),
    "guided_decoding_guide_type": ("BYTES", np.object_),
    "guided_decoding_guide": ("BYTES", np.object_),
    "bad_words": ("BYTES", np.object_),
    "max_tokens": ("INT32", np.int32),
    "min_tokens": ("INT32", np.int32),
    "top_k": ("INT32", np.int32),
    "beam_width": ("INT32", np.int32),
    "timeout_ms": ("INT32", np.int32),
    "end_id": ("INT32", np.int32),
    "priority": ("INT32", np.int32),
    "temperature": ("FP32", np.float32),
    "top_p": ("FP32", np.float32),
    "min_p": ("FP32", np.float32),
    "repetition_penalty": ("FP32", np.float32),
    "presence_penalty": ("FP32", np.float32),
    "frequency_penalty": ("FP32", np.float32),
    "seed": ("UINT64", np.uint64),
    "random_seed": ("UINT64", np.uint64),
    "stream": ("BOOL", np.bool_),
    "chat": ("BOOL", np.bool_),
    "speculate": ("BOOL", np.bool_),
    "return_log_probs": ("BOOL", np.bool_),
    "exclude_input_in_output": ("BOOL", np.bool_),
}


@dataclass
class Answer:
    """What came back for one request; ``pieces`` holds each response's text in order.

    ``draft_tokens`` and ``accepted_tokens`` count speculation; None: the server does not count it.
    """

    pieces: list[str] = field(default_factory=list)
    finish_reason: str = ""
    output_tokens: int = 0
    error: str | None = None
    seconds_to_first: float | None = None
    log_probs: list[float] = field(default_factory=list)
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def build_inputs(values: dict[str, Any], dtypes: dict[str, str] | None = None) -> list[Any]:
    """tritonclient inputs of shape [1, n]; ``dtypes`` overrides a tensor's type (to send a wrong one)."""
    import tritonclient.grpc as grpc

    inputs = []
    for name, value in values.items():
        triton_type, numpy_type = _DTYPES[name]
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if numpy_type is np.object_:
            items = [item.encode() if isinstance(item, str) else item for item in items]
        array = np.array([items], dtype=numpy_type)
        triton_type = (dtypes or {}).get(name, triton_type)
        if dtypes and name in dtypes:
            array = array.astype(np.int64)
        tensor = grpc.InferInput(name, list(array.shape), triton_type)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


class StreamClient:
    """One gRPC stream to one model; requests on it are answered one after the other."""

    def __init__(self, url: str, model: str) -> None:
        import tritonclient.grpc as grpc

        self._url = url
        self._client = grpc.InferenceServerClient(url)
        self._model = model
        self._events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))

    def send(self, values: dict[str, Any], dtypes: dict[str, str] | None = None, request_id: str = "") -> None:
        """Queue one request."""
        from tritonclient.utils import InferenceServerException

        try:
            self._client.async_stream_infer(
                self._model, build_inputs(values, dtypes), request_id=request_id, enable_empty_final_response=True
            )
        except InferenceServerException as error:
            raise ForgeError(
                "TF-LCH-012",
                f"no server answers at {self._url}",
                why=str(error),
                remedies=["trtforge serve BUNDLE", "the gRPC port that the server printed"],
            ) from None

    def receive(self, timeout: float) -> Iterable[tuple[str, Any]]:
        """Responses of one request until its final flag: (text, result) pairs.

        Raises:
            ForgeError: TF-LCH-010 when the server says nothing for ``timeout`` seconds; TF-LCH-011 with
                the server's error.
        """
        while True:
            try:
                result, error = self._events.get(timeout=timeout)
            except queue.Empty:
                raise ForgeError(
                    "TF-LCH-010", "the server gave no answer in time", numbers={"timeout_s": timeout}
                ) from None
            if error is not None:
                raise ForgeError("TF-LCH-011", "the server refused the request", why=str(error))
            response = result.get_response()
            array = result.as_numpy("text_output")
            if array is not None and array.size:
                yield array.reshape(-1)[0].decode("utf-8"), result
            if response.parameters["triton_final_response"].bool_param:
                return

    def ask(self, values: dict[str, Any], timeout: float = 120.0, dtypes: dict[str, str] | None = None) -> Answer:
        """Send one request and collect its whole answer; a refusal is in ``Answer.error``."""
        answer = Answer()
        begin = time.monotonic()
        try:
            self.send(values, dtypes)
            for text, result in self.receive(timeout):
                if answer.seconds_to_first is None:
                    answer.seconds_to_first = time.monotonic() - begin
                answer.pieces.append(text)
                answer.output_tokens = int(result.as_numpy("num_output_tokens").reshape(-1)[0])
                reason = result.as_numpy("finish_reason").reshape(-1)[0].decode()
                answer.finish_reason = reason or answer.finish_reason
                log_probs = result.as_numpy("output_log_probs")
                if log_probs is not None:
                    answer.log_probs += [float(x) for x in log_probs.reshape(-1)]
                drafted = result.as_numpy("total_draft_tokens")
                if drafted is not None:
                    answer.draft_tokens = int(drafted.reshape(-1)[0])
                    answer.accepted_tokens = int(result.as_numpy("total_accepted_draft_tokens").reshape(-1)[0])
        except ForgeError as error:
            if error.code != "TF-LCH-011":
                raise
            answer.error = error.why
        return answer

    def close(self, cancel: bool = False) -> None:
        """End the stream; ``cancel`` withdraws what is still running."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def __enter__(self) -> StreamClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=error is not None)
