"""Jobs as Triton's tensors, and Triton's responses as pieces; no connection.

Values go as protobuf's raw contents: reading a response costs a few microseconds and no numpy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from launcher.openai_front.deployment import Deployment
from launcher.openai_front.errors import not_offered
from launcher.openai_front.job import Job, Piece, Prompt
from launcher.openai_front.names import client_name

_NUMPY: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BYTES": np.object_,
}


def tensors(deployment: Deployment, job: Job, prompt: Prompt, bias_words: Mapping[str, float]) -> dict[str, Any]:
    """The input tensors of a request by name, flat values each.

    Args:
        bias_words: ``job.bias`` by words, for layouts that take words.

    Raises:
        ApiError: ``TF-OAI-002`` for what the layout has no input for.
    """
    names = deployment.names
    # where the engine keeps no deadline, an answer that is cut has what came until then
    kept = job.timeout_ms is None or deployment.takes("timeout_ms")
    stream = job.stream or (not kept and deployment.decoupled)
    values: dict[str, Any] = {"max_tokens": job.max_tokens, "stream": stream}
    values |= {"tokens": prompt.tokens} if names.takes_tokens else {"text": prompt.text}
    if "without_prompt" in names.inputs:
        values["without_prompt"] = True
    values |= _choice(deployment, job)
    for field in ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "seed", "priority"):
        value = getattr(job, field)
        if value is not None:
            values[field] = value
    if job.timeout_ms is not None and deployment.takes("timeout_ms"):
        values["timeout_ms"] = job.timeout_ms
    if job.cache_salt is not None:
        values["cache_salt"] = job.cache_salt
    if job.n > 1:
        values["n"] = job.n
    if job.stop:
        values["stop"] = list(job.stop)
    if job.guide is not None:
        schema = json.dumps({**names.schema, **job.guide.schema})
        kind, text = ("ebnf_grammar", job.guide.grammar) if job.guide.grammar else ("json_schema", schema)
        values |= {"guide_type": kind, "guide": text}
    values |= _bias(deployment, job, bias_words)
    found = {}
    for field, value in values.items():
        if not deployment.takes(field):
            raise not_offered(client_name(field), f"{deployment.model} of this server has no input for it")
        found[names.inputs[field]] = value
    wanted = {*_outputs(deployment, job)}
    for field, switch in names.switches.items():
        if field in wanted or (field == "cached_blocks" and _counts_blocks(deployment)):
            found[switch] = True
    return found


def _choice(deployment: Deployment, job: Job) -> dict[str, Any]:
    """Greedy, or a draw: ``top_p`` 1 asks for one where a temperature of 1 alone does not."""
    greedy = job.temperature == 0 or job.top_p == 0 or job.top_k == 1
    if greedy:
        return dict(deployment.names.greedy) or {"temperature": 0.0}
    values: dict[str, Any] = {"temperature": job.temperature, "top_p": job.top_p}
    if job.top_k:
        values["top_k"] = job.top_k
    if job.min_p:
        values["min_p"] = job.min_p
    return values


def _bias(deployment: Deployment, job: Job, words: Mapping[str, float]) -> dict[str, Any]:
    if not job.bias:
        return {}
    if "bias_words" in deployment.names.inputs:
        return {"bias_words": list(words), "bias_weights": list(words.values())}
    vector = np.zeros(max(job.bias) + 1, dtype=np.float32)
    vector[list(job.bias)] = list(job.bias.values())
    return {"bias": vector}


def _counts_blocks(deployment: Deployment) -> bool:
    """Whether cached tokens are worked out from KV blocks."""
    known = deployment.block_size is not None and deployment.gives("cached_blocks")
    return known and not deployment.gives("cached_tokens")


def _outputs(deployment: Deployment, job: Job) -> list[str]:
    """Fields of a piece that are asked for."""
    wanted = ["text", "finish", "output_tokens"]
    if job.n > 1:
        wanted.append("index")
    if deployment.gives("cached_tokens"):
        wanted.append("cached_tokens")
    elif _counts_blocks(deployment):
        wanted.append("cached_blocks")
    if job.log_probs:
        wanted += ["token_ids", "log_probs"]
    return wanted


def inputs(deployment: Deployment, values: Mapping[str, Any]) -> list[Any]:
    """tritonclient's inputs."""
    from tritonclient.grpc import InferInput

    made = []
    for name, value in values.items():
        kind = deployment.inputs[name]
        items = value if isinstance(value, (list, np.ndarray)) else [value]
        if kind == "BYTES":
            items = [item.encode() for item in items]
        array = np.array(items, dtype=_NUMPY[kind])
        if deployment.batched:
            array = array.reshape(1, -1)
        tensor = InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def outputs(deployment: Deployment, job: Job) -> list[Any]:
    """tritonclient's requested outputs."""
    from tritonclient.grpc import InferRequestedOutput

    return [InferRequestedOutput(deployment.names.outputs[field]) for field in _outputs(deployment, job)]


class Reader:
    """Reads responses of one request."""

    def __init__(self, deployment: Deployment, job: Job) -> None:
        self._fields = {deployment.names.outputs[field]: field for field in _outputs(deployment, job)}
        self._block = deployment.block_size or 0

    def piece(self, response: Any) -> Piece | None:
        """The piece in a ``ModelInferResponse``; None when it holds none."""
        piece, any_text = Piece(), False
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=False):
            field = self._fields.get(tensor.name)
            if field is None:
                continue
            values = _DECODE[tensor.datatype](raw)
            if field in ("token_ids", "log_probs"):
                setattr(piece, field, values)
            elif not values:
                continue
            elif field == "cached_blocks":
                piece.cached_tokens = values[0] * self._block
            else:
                setattr(piece, field, values[0])
                any_text = any_text or field == "text"
        return piece if any_text else None


def _texts(raw: bytes) -> list[str]:
    """Elements of a BYTES tensor: four bytes of length, then the bytes."""
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + size].decode("utf-8", "replace"))
        at += 4 + size
    return found


def _numbers(kind: str, size: int) -> Callable[[bytes], list[Any]]:
    return lambda raw: list(struct.unpack(f"<{len(raw) // size}{kind}", raw))


_DECODE: Mapping[str, Callable[[bytes], list[Any]]] = {
    "BYTES": _texts,
    "INT32": _numbers("i", 4),
    "INT64": _numbers("q", 8),
    "FP32": _numbers("f", 4),
    "BOOL": _numbers("?", 1),
}
