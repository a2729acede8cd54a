"""What Triton's own OpenAI frontend sends to a model that is not vLLM's, and how it reads what comes back.

Written anew from its behaviour at commit e1db8a603d86 (Triton 2.73, August 2026) of
https://github.com/triton-inference-server/server, ``python/openai/openai_frontend/engine/utils/triton.py`` and
``triton_engine.py``: which tensors of which shapes and types it makes of a request, with the values that its schema
fills in, and how it takes text and usage from the responses. It hands requests to a Triton in its own process; here
they go over gRPC, tensor for tensor.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import np_to_triton_dtype

#: tokens where a request does not say: the default of ``--default-max-tokens``
DEFAULT_MAX_TOKENS = 16
_PENALTIES = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "top_p": 1.0}
#: what its schemas fill in and its converter always sends
CHAT = {**_PENALTIES, "temperature": 0.7}
COMPLETION = {**_PENALTIES, "temperature": 1.0, "echo": False}
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Ulm", "Bonn"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}

#: name → fields of an OpenAI request as its converter sees them after validation; ``tool`` is the forced tool's schema
REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "a chat as it is": CHAT,
    "a greedy chat": {**CHAT, "temperature": 0.0},
    "a chat with max_completion_tokens": {**CHAT, "max_tokens": 40},
    "a chat with a stop": {**CHAT, "stop": ["\n"]},
    "a chat with four stops": {**CHAT, "stop": ["\n", "END", "ä", "."]},
    "a chat with everything": {
        "temperature": 1.3,
        "top_p": 0.5,
        "frequency_penalty": 1.5,
        "presence_penalty": -1.5,
        "seed": 2**63 - 1,
        "max_tokens": 7,
        "stop": ["x"],
    },
    "the ends of the ranges": {"temperature": 2.0, "top_p": 0.0, "frequency_penalty": -2.0, "presence_penalty": 2.0},
    "a seed of 0": {**CHAT, "seed": 0},
    "a forced tool": {**CHAT, "tool": _WEATHER, "max_tokens": 60},
    "a forced tool without parameters": {**CHAT, "tool": {}, "max_tokens": 20},
    "a tool of nested schemas": {
        **CHAT,
        "tool": {"type": "object", "properties": {"all": {"type": "array", "items": _WEATHER}}, "required": ["all"]},
        "max_tokens": 60,
    },
    "a completion as it is": COMPLETION,
    "a greedy completion": {**COMPLETION, "temperature": 0.0, "max_tokens": 12},
    "a completion that repeats its prompt": {**COMPLETION, "echo": True, "max_tokens": 5},
    "a completion of one token": {**COMPLETION, "max_tokens": 1},
    "a completion with a seed and a stop": {**COMPLETION, "seed": 7, "stop": ["e"], "max_tokens": 30},
}


def tensors(prompt: str, request: Mapping[str, Any], *, stream: bool) -> dict[str, np.ndarray]:
    """The input tensors of a request, in the frontend's order, shapes and types."""

    def one(value: Any, dtype: Any) -> np.ndarray:
        return np.array([[value]], dtype=dtype)

    made = {
        "text_input": one(prompt.encode(), object),
        "stream": one(stream, np.bool_),
        "max_tokens": one(request.get("max_tokens", DEFAULT_MAX_TOKENS), np.int32),
    }
    if request.get("stop"):
        made["stop_words"] = np.array([[word.encode() for word in request["stop"]]], dtype=object)
    for name in ("top_p", "frequency_penalty", "presence_penalty"):
        made[name] = one(request[name], np.float32)
    if "seed" in request:
        made["seed"] = one(request["seed"], np.uint64)
    made["temperature"] = one(request["temperature"], np.float32)
    if "echo" in request:
        made["exclude_input_in_output"] = one(not request["echo"], np.bool_)
    if "tool" in request:
        made["guided_decoding_guide_type"] = one(b"json_schema", object)
        made["guided_decoding_guide"] = one(json.dumps(request["tool"]).encode(), object)
    made["return_num_input_tokens"] = one(True, np.bool_)
    made["return_num_output_tokens"] = one(True, np.bool_)
    return made


@dataclass
class Told:
    """What the frontend would tell its client; ``chunks`` are the texts that it streams."""

    error: str | None = None
    chunks: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    responses: int = 0

    @property
    def text(self) -> str:
        return "".join(self.chunks)


def ask(url: str, model: str, prompt: str, request: Mapping[str, Any], *, stream: bool, timeout: float = 60.0) -> Told:
    """Send a request and read its answer as the frontend does.

    A whole answer is the first of one or two responses. Of a stream every response counts: its text is a chunk, prompt
    tokens are those of the first response that says, and output tokens are *added up*.
    """
    inputs = []
    for name, array in tensors(prompt, request, stream=stream).items():
        tensor = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    events: queue.Queue[tuple[Any, Any]] = queue.Queue()
    told = Told()
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: events.put((result, error)))
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        final = False
        while not final:
            result, error = events.get(timeout=timeout)
            if error is not None:
                told.error = error.message()
                return told
            told.responses += 1
            final = result.get_response().parameters["triton_final_response"].bool_param
            if stream or told.responses == 1:
                _read(result, told)
    assert stream or 1 <= told.responses <= 2, "it refuses other numbers"
    return told


def _read(result: Any, told: Told) -> None:
    text = result.as_numpy("text_output")
    if text is not None:
        assert text.size == 1, "it reads one string and refuses more"
        told.chunks.append(text.reshape(-1)[0].decode("utf-8"))
    counts = [result.as_numpy(name) for name in ("num_input_tokens", "num_output_tokens")]
    if all(count is not None for count in counts):
        assert {count.dtype for count in counts} <= {np.dtype(np.int32), np.dtype(np.uint32)}
        if told.prompt_tokens is None:
            told.prompt_tokens = int(counts[0].reshape(-1)[0])
        told.completion_tokens += int(counts[1].reshape(-1)[0])
