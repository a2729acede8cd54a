"""Clients of TensorRT-LLM's Triton backend as this project did not write them: their tensors, their reading of answers.

Each class does what a published client does, written anew from its behaviour
(https://github.com/NVIDIA/TensorRT-LLM/tree/v1.2.1/triton_backend/inflight_batcher_llm/client and
``triton_backend/tools/inflight_batcher_llm``): which tensors of which shapes and types it always sends, which outputs
it asks for, and how it indexes what comes back. Nothing here knows how the server under test is made.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PERFORMANCE = (
    "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
    "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
    "total_accepted_draft_tokens", "total_draft_tokens",
)  # fmt: skip
_SCALARS = {int: np.int32, float: np.float32, bool: np.bool_}


def _column(value: Any, dtype: Any = None) -> np.ndarray:
    """One value as [1, 1]."""
    if isinstance(value, str):
        return np.array([[value]], dtype=object)
    return np.array([[value]], dtype=dtype or _SCALARS[type(value)])


def _tensors(arrays: dict[str, np.ndarray], protocol: Any = grpc) -> list[Any]:
    result = []
    for name, array in arrays.items():
        tensor = protocol.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        result.append(tensor)
    return result


def _collect(events: queue.Queue) -> list[Any]:
    found = []
    while not events.empty():
        result, error = events.get()
        found.append(result if error is None else error)
    return found


@dataclass
class EndToEndAnswer:
    """Texts by prompt and sequence, and what else was read from each response."""

    texts: list[list[str]]
    errors: list[str] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    log_probs: list[np.ndarray] = field(default_factory=list)
    responses: int = 0


class EndToEndClient:
    """``end_to_end_grpc_client.py``: text in, text out, over a stream that it opens and closes for each request."""

    def __init__(self, url: str, model: str = "ensemble") -> None:
        self._url, self._model = url, model

    def ask(
        self,
        prompts: Sequence[str],
        *,
        output_len: int = 100,
        streaming: bool = False,
        beam_width: int = 1,
        temperature: float = 1.0,
        num_return_sequences: int | None = None,
        exclude_input_in_output: bool = False,
        batch_inputs: bool = False,
        overwrite_output_text: bool = False,
        stop_words: Sequence[str] = (),
        bad_words: Sequence[str] = (),
        embedding_bias: Sequence[tuple[str, float]] = (),
        return_flags: Sequence[str] = (),
        lora_task_id: int | None = None,
        request_id: str = "",
        **scalars: Any,
    ) -> EndToEndAnswer:
        """Ask as the command line does; ``scalars`` are further inputs of one value (penalties, guides, end_id, …)."""
        rows = []
        for prompt in prompts:
            row = {
                "text_input": _column(prompt),
                "max_tokens": _column(output_len),
                "stream": _column(streaming),
                "beam_width": _column(beam_width),
                "temperature": _column(temperature),
            }
            if num_return_sequences is not None:
                row["num_return_sequences"] = _column(num_return_sequences)
            for name, words in (("bad_words", bad_words), ("stop_words", stop_words)):
                if words:
                    row[name] = np.array([list(words)], dtype=object)
            row |= {name: _column(True) for name in return_flags}
            if embedding_bias:
                row["embedding_bias_words"] = np.array([[word for word, _ in embedding_bias]], dtype=object)
                row["embedding_bias_weights"] = np.array([[w for _, w in embedding_bias]], dtype=np.float32)
            row["exclude_input_in_output"] = _column(exclude_input_in_output)
            if lora_task_id:
                row["lora_task_id"] = _column(lora_task_id, np.uint64)
            rows.append(row | {name: _column(value) for name, value in scalars.items()})
        if batch_inputs:
            rows = [{name: np.concatenate([row[name] for row in rows], axis=0) for name in rows[0]}]
        outputs = ["text_output"]
        if "return_log_probs" in return_flags:
            outputs += ["cum_log_probs", "output_log_probs"]
        if "return_context_logits" in return_flags:
            outputs.append("context_logits")
        if "return_generation_logits" in return_flags:
            outputs.append("generation_logits")
        if (num_return_sequences or 0) > 1:
            outputs.append("sequence_index")
        if batch_inputs:
            outputs.append("batch_index")
        if "return_perf_metrics" in return_flags:
            outputs += PERFORMANCE
        answer = EndToEndAnswer([])
        for row in rows:
            size = len(row["text_input"])
            texts = [[""] * (num_return_sequences or beam_width) for _ in range(size)]
            for result in self._stream(row, outputs, request_id):
                if isinstance(result, InferenceServerException):
                    answer.errors.append(str(result))
                    continue
                answer.responses += 1
                whose = result.as_numpy("batch_index")
                at = 0 if whose is None else whose[0][0]
                which = result.as_numpy("sequence_index")
                sequence = 0 if which is None else which[0][0]
                text = result.as_numpy("text_output")[0].decode("utf-8")
                if streaming and beam_width == 1 and not overwrite_output_text:
                    texts[at][sequence] += text
                else:
                    texts[at][sequence] = text
                if "return_log_probs" in return_flags:
                    answer.log_probs.append(result.as_numpy("output_log_probs"))
                if "return_perf_metrics" in return_flags:
                    answer.metrics.append({name: result.as_numpy(name)[0][0] for name in PERFORMANCE})
            answer.texts += texts
        return answer

    def _stream(self, row: dict[str, np.ndarray], outputs: Sequence[str], request_id: str) -> list[Any]:
        events: queue.Queue = queue.Queue()
        with grpc.InferenceServerClient(self._url) as client:
            client.start_stream(callback=lambda result, error: events.put((result, error)))
            client.async_stream_infer(
                self._model,
                _tensors(row),
                outputs=[grpc.InferRequestedOutput(name) for name in outputs],
                request_id=request_id,
            )
            client.stop_stream()
        return _collect(events)


@dataclass
class TokenAnswer:
    """Tokens by sequence as the client counts them, and the optional outputs of the last response of each."""

    tokens: list[list[int]]
    lengths: list[int | None]
    errors: list[str] = field(default_factory=list)
    outputs: list[dict[str, np.ndarray]] = field(default_factory=list)
    names: list[set[str]] = field(default_factory=list)


class TokenClient:
    """``inflight_batcher_llm_client.py``: tokens in, tokens out."""

    def __init__(self, url: str, model: str = "tensorrt_llm") -> None:
        self._url, self._model = url, model

    def ask(
        self,
        input_ids: Sequence[int],
        *,
        request_output_len: int = 16,
        streaming: bool = False,
        end_id: int = -1,
        pad_id: int = 50256,
        beam_width: int = 1,
        temperature: float = 1.0,
        top_k: int = 1,
        top_p: float = 0.0,
        num_return_sequences: int | None = None,
        exclude_input_in_output: bool = False,
        flags: Sequence[str] = (),
        requested_outputs: Sequence[str] = (),
        draft_ids: Sequence[int] | None = None,
        lora_task_id: int | None = None,
        lookahead: Sequence[int] | None = None,
        stop_after_ms: int = 0,
        stop_via_request_cancel: bool = False,
        request_id: str = "",
        **scalars: Any,
    ) -> TokenAnswer:
        """Ask as the command line does; ``flags`` are BOOL inputs that it sends when its switches are given."""
        arrays = {
            "input_ids": np.array([list(input_ids)], dtype=np.int32),
            "input_lengths": _column(len(input_ids)),
            "request_output_len": _column(request_output_len),
            "beam_width": _column(beam_width),
            "temperature": _column(temperature),
            "streaming": _column(streaming),
            "end_id": _column(end_id),
            "pad_id": _column(pad_id),
            "runtime_top_k": _column(top_k),
            "runtime_top_p": _column(top_p),
        }
        if num_return_sequences:
            arrays["num_return_sequences"] = _column(num_return_sequences)
        if exclude_input_in_output:
            arrays["exclude_input_in_output"] = _column(True)
        if draft_ids is not None:
            arrays["draft_input_ids"] = np.array([list(draft_ids)], dtype=np.int32)
        if lora_task_id:
            arrays["lora_task_id"] = _column(lora_task_id, np.uint64)
        if lookahead is not None:
            names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
            arrays |= {name: _column(value) for name, value in zip(names, lookahead, strict=True)}
        arrays |= {name: _column(True) for name in flags}
        arrays |= {name: _column(value) for name, value in scalars.items()}
        outputs = [grpc.InferRequestedOutput(name) for name in requested_outputs] or None
        events: queue.Queue = queue.Queue()
        with grpc.InferenceServerClient(self._url) as client:
            if streaming or num_return_sequences is not None:
                client.start_stream(callback=lambda result, error: events.put((result, error)))
                client.async_stream_infer(self._model, _tensors(arrays), outputs=outputs, request_id=request_id)
                if stop_after_ms:
                    time.sleep(stop_after_ms / 1000)
                    if not stop_via_request_cancel:
                        client.async_stream_infer(
                            self._model, _stop(), request_id=request_id, parameters={"Streaming": streaming}
                        )
                client.stop_stream(cancel_requests=stop_after_ms > 0 and stop_via_request_cancel)
                results = _collect(events)
            else:
                client.async_infer(
                    self._model,
                    _tensors(arrays),
                    outputs=outputs,
                    request_id=request_id,
                    callback=lambda result, error: events.put((result, error)),
                    parameters={"Streaming": streaming},
                )
                result, error = events.get(timeout=60)
                results = [result if error is None else error]
        return self._read(
            results, list(input_ids), streaming, exclude_input_in_output, num_return_sequences or 1, flags
        )

    def _read(
        self,
        results: list[Any],
        prompt: list[int],
        streaming: bool,
        exclude: bool,
        sequences: int,
        flags: Sequence[str],
    ) -> TokenAnswer:
        first = prompt if streaming and not exclude else []
        answer = TokenAnswer([list(first) for _ in range(sequences)], [None] * sequences)
        for result in results:
            if isinstance(result, InferenceServerException):
                answer.errors.append(str(result))
                continue
            ids = result.as_numpy("output_ids")
            answer.names.append({output.name for output in result.get_response().outputs})
            if ids is None:
                continue
            which = result.as_numpy("sequence_index")
            sequence = 0 if which is None else which[0][0]
            length = result.as_numpy("sequence_length")[0][0]
            answer.lengths[sequence] = length
            if not streaming or length > 0:
                answer.tokens[sequence] += list(ids[0][0])
            read = {}
            if "return_log_probs" in flags:
                read["cum_log_probs"] = result.as_numpy("cum_log_probs")[0]
                read["output_log_probs"] = result.as_numpy("output_log_probs")[0]
            if "return_perf_metrics" in flags:
                read |= {name: result.as_numpy(name) for name in PERFORMANCE}
            for name in ("num_input_tokens", "num_output_tokens"):
                if f"return_{name}" in flags:
                    read[name] = result.as_numpy(name)
            answer.outputs.append(read)
        return answer


def _stop() -> list[Any]:
    """The request that ends another one of the same id: values that mean nothing, and ``stop``."""
    return _tensors(
        {
            "input_ids": np.empty([1, 1], dtype=np.int32),
            "input_lengths": np.zeros([1, 1], dtype=np.int32),
            "request_output_len": _column(0),
            "stop": _column(True),
        }
    )


class CoreBenchmark:
    """``benchmark_core_model.py``: many prompts of tokens at once, answers counted by their request ids."""

    def __init__(
        self, url: str, *, protocol: str = "grpc", decoupled: bool = True, model: str = "tensorrt_llm"
    ) -> None:
        self._url, self._protocol, self._decoupled, self._model = url, protocol, decoupled, model

    def run(
        self, prompts: Sequence[Sequence[int]], output_len: int, *, pad_id: int, end_id: int
    ) -> dict[str, list[int]]:
        """The tokens of every answer by request id.

        Raises:
            RuntimeError: a request failed.
        """
        library = http if self._protocol == "http" else grpc
        rows = [
            {
                "input_ids": np.array([list(prompt)], dtype=np.int32),
                "input_lengths": _column(len(prompt)),
                "request_output_len": _column(output_len),
                "pad_id": _column(pad_id),
                "end_id": _column(end_id),
            }
            for prompt in prompts
        ]
        if library is http:
            with http.InferenceServerClient(self._url, concurrency=len(rows)) as client:
                waiting = [
                    client.async_infer(self._model, _tensors(row, http), request_id=str(i))
                    for i, row in enumerate(rows)
                ]
                results = [request.get_result() for request in waiting]
            return {result.get_response()["id"]: _tokens_of(result) for result in results}
        events: queue.Queue = queue.Queue()

        def note(result: Any, error: Any) -> None:
            events.put((result, error))

        with grpc.InferenceServerClient(self._url) as client:
            if self._decoupled:
                client.start_stream(callback=note)
            for i, row in enumerate(rows):
                if self._decoupled:
                    client.async_stream_infer(self._model, _tensors(row), request_id=str(i))
                else:
                    client.async_infer(self._model, _tensors(row), callback=note, request_id=str(i))
            if self._decoupled:
                client.stop_stream()
            found = [events.get(timeout=60) for _ in rows]
        for _, error in found:
            if error is not None:
                raise RuntimeError(error)
        return {result.get_response().id: _tokens_of(result) for result, _ in found}


def _tokens_of(result: Any) -> list[int]:
    return [int(token) for token in result.as_numpy("output_ids")[0][0][: result.as_numpy("sequence_length")[0][0]]]


def generate(url: str, model: str, body: dict[str, Any], *, stream: bool = False) -> tuple[int, Any]:
    """``curl`` on ``generate`` (status and JSON) or ``generate_stream`` (status and the list of events)."""
    import urllib.error
    import urllib.request

    verb = "generate_stream" if stream else "generate"
    request = urllib.request.Request(
        f"http://{url}/v2/models/{model}/{verb}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    if not text.startswith("data:"):  # an error of Triton's own comes as plain JSON from generate_stream too
        return status, [json.loads(text)] if stream else json.loads(text)
    return status, [json.loads(line[len("data:") :]) for line in text.splitlines() if line.startswith("data:")]
