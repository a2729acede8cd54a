"""Between a Triton request's tensors and the runtime's requests; knows nothing of Triton's modules.

Policy: what a client sends is checked here or by :class:`SamplingParams`, and every fault becomes a
coded error for that request alone. Empty entries of ``stop_words`` and ``bad_words`` are dropped: the
usual curl examples for TensorRT-LLM's ensemble send ``""`` for "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.request import Request, RequestOutput
from runtime.sampling.params import SamplingParams
from trtforge.errors import ForgeError

_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_INTEGERS = ("top_k", "min_tokens")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def request_from_tensors(
    tensors: Mapping[str, np.ndarray], *, request_id: str | None = None, eos_token_ids: tuple[int, ...] = ()
) -> Request:
    """The runtime request that a client's tensors ask for.

    Args:
        tensors: arrays by tensor name with the batch axis (size 1) first; absent optionals left out.
        request_id: the client's id, if it gave one.
        eos_token_ids: the model's end-of-sequence tokens, which an ``end_id`` of the client replaces.

    Raises:
        ForgeError: TF-RUN-101 (more than one prompt, or an empty tensor), TF-RUN-102 (text is not
            UTF-8), TF-RUN-103 (beams), TF-RUN-104 (timeout), and the codes of SamplingParams.
    """
    values = {name: _scalar(name, array) for name, array in tensors.items() if name not in ("stop_words", "bad_words")}
    beam_width = int(values.get("beam_width", 1))
    if beam_width != 1:
        raise ForgeError(
            "TF-RUN-103",
            "beam search is not offered",
            asked=f"beam_width: {beam_width}",
            why="the runtime samples; a beam needs a cache a beam and cannot stream",
            remedies=["beam_width: 1", "top_k or top_p with a seed for variety"],
        )
    text = _text("text_input", values["text_input"])
    if not text:
        raise ForgeError(
            "TF-RUN-105",
            "text_input is empty",
            why="a model continues a text; there is nothing to continue",
            remedies=["put the prompt into text_input"],
        )
    chat = bool(values.get("chat", False))
    timeout = None
    if "timeout_ms" in values:
        timeout = int(values["timeout_ms"]) / 1000.0
        if timeout <= 0:
            raise ForgeError(
                "TF-RUN-104",
                "the deadline has passed already",
                asked=f"timeout_ms: {values['timeout_ms']}",
                remedies=["timeout_ms: 30000", "leave timeout_ms out"],
            )
    return Request(
        request_id=request_id or None,
        prompt=None if chat else text,
        messages=[{"role": "user", "content": text}] if chat else None,
        params=_sampling(values, tensors, eos_token_ids),
        priority=int(values.get("priority", 0)),
        timeout=timeout,
        stream=bool(values.get("stream", False)),
    )


def _sampling(
    values: Mapping[str, Any], tensors: Mapping[str, np.ndarray], eos_token_ids: tuple[int, ...]
) -> SamplingParams:
    given: dict[str, Any] = {"max_tokens": int(values["max_tokens"])}
    given.update({name: float(values[name]) for name in _FLOATS if name in values})
    given.update({name: int(values[name]) for name in _INTEGERS if name in values})
    for name in ("random_seed", "seed"):  # the newer name wins
        if name in values:
            given["seed"] = int(values[name])
    if not any(name in values for name in _SAMPLING):
        given["temperature"] = 0.0  # a seed alone asks for reproducibility, not for sampling
    if values.get("return_log_probs", False):
        given["logprobs"] = 0
    end_id = int(values.get("end_id", -1))
    if end_id >= 0 and end_id not in eos_token_ids:
        given["ignore_eos"] = True
        given["stop_token_ids"] = (end_id,)
    for tensor, name in (("stop_words", "stop"), ("bad_words", "bad_words")):
        if tensor in tensors:
            words = [_text(tensor, item) for item in tensors[tensor].reshape(-1)]
            given[name] = tuple(word for word in words if word)
    return SamplingParams(**given)


def _scalar(name: str, array: np.ndarray) -> Any:
    flat = array.reshape(-1)
    if len(flat) != 1:
        raise ForgeError(
            "TF-RUN-101",
            f"{name} must hold exactly one value",
            asked=f"{name} of shape {list(array.shape)}",
            numbers={"values": len(flat)},
            why="a request carries one prompt; batching happens inside the runtime",
            remedies=["send one request a prompt, concurrently"],
        )
    return flat[0]


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode("utf-8")
    except (UnicodeDecodeError, TypeError, ValueError) as error:
        raise ForgeError(
            "TF-RUN-102", f"{name} is not UTF-8 text", why=str(error), remedies=["encode the text as UTF-8"]
        ) from None


def tensors_from_output(output: RequestOutput, *, prefix: str = "", log_probs: bool = False) -> dict[str, np.ndarray]:
    """The response tensors of one output, with the batch axis first.

    ``prefix`` is text put before the answer (the prompt, when the client asked to have it back).
    """
    sample = output.samples[0] if output.samples else None
    text = prefix + (sample.text if sample is not None else "")
    reason = str(sample.finish_reason) if sample is not None and sample.finish_reason is not None else ""
    chosen: list[float] = []
    cumulative = 0.0
    if log_probs and sample is not None:
        chosen = [entry.logprob for entry in sample.logprobs or ()]
        cumulative = sample.cumulative_logprob or 0.0
    return {
        "text_output": np.array([[text.encode("utf-8")]], dtype=np.object_),
        "finish_reason": np.array([[reason.encode("utf-8")]], dtype=np.object_),
        "cum_log_probs": np.array([[cumulative]], dtype=np.float32),
        "output_log_probs": np.array([[chosen]], dtype=np.float32),
        "num_input_tokens": np.array([[output.num_prompt_tokens]], dtype=np.int32),
        "num_output_tokens": np.array([[sample.num_tokens if sample is not None else 0]], dtype=np.int32),
    }
