"""What the native model of bundles written before the ensemble's whole contract imports; new ones use ``frontend``.

Such a bundle brings its own ``model.py`` and takes the runtime from where it is served. It declares one prompt a
request and outputs of shape [1, 1].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from runtime.frontend.asking import read
from runtime.request import Request, RequestOutput


def request_from_tensors(
    tensors: Mapping[str, np.ndarray], *, request_id: str | None = None, eos_token_ids: tuple[int, ...] = ()
) -> Request:
    """The runtime request that a client's tensors ask for.

    Args:
        tensors: arrays by tensor name with the batch axis (size 1) first; absent optionals left out.
        request_id: the client's id, if it gave one.
        eos_token_ids: the model's end-of-sequence tokens, which an ``end_id`` of the client replaces.

    Raises:
        ForgeError: the codes of :func:`runtime.frontend.asking.read`.
    """
    asked = read(tensors, eos_token_ids=eos_token_ids)[0]
    return dataclasses.replace(asked.request, request_id=request_id or None)


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
