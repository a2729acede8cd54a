"""Between a request's tensors and TensorRT-LLM's ``LLM``; knows neither Triton nor TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

REPLACEMENT = "\ufffd"
#: tensor ``sampling_param_NAME`` → what ``SamplingParams(NAME=…)`` takes
SAMPLING: Mapping[str, type] = {
    "best_of": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "max_tokens": int,
    "seed": int,
    "exclude_input_from_output": bool,
    "return_perf_metrics": bool,
    "use_beam_search": bool,
}
#: kinds of a guide, as the engines' ensemble calls them → the argument of ``GuidedDecodingParams`` that takes it
GUIDES: Mapping[str, str] = {
    "json": "json_object",
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_LORA = ("lora_id", "lora_name", "lora_path")


class Refused(Exception):
    """An error that is the client's answer."""


def scalar(tensors: Mapping[str, np.ndarray], name: str, default: Any = None) -> Any:
    """The one value of a tensor, ``default`` when it was not sent.

    Raises:
        Refused: the tensor holds none or several.
    """
    if name not in tensors:
        return default
    flat = tensors[name].reshape(-1)
    if len(flat) != 1:
        raise Refused(f"TF-TRI-080: {name} holds {len(flat)} values; a request carries one prompt")
    return flat[0].decode("utf-8") if isinstance(flat[0], bytes) else flat[0].item()


def sampling(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arguments of ``SamplingParams``: only what was sent, so that its defaults hold for the rest."""
    given = {
        name: kind(scalar(tensors, f"sampling_param_{name}"))
        for name, kind in SAMPLING.items()
        if f"sampling_param_{name}" in tensors
    }
    if "sampling_param_stop" in tensors:
        stops = [item.decode("utf-8") for item in tensors["sampling_param_stop"].reshape(-1)]
        if any(stops):
            given["stop"] = [stop for stop in stops if stop]
    if scalar(tensors, "return_cumulative_logprob", False):
        given["logprobs"] = 1  # without them there is nothing to add up
    return given


def guide(tensors: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Arguments of ``GuidedDecodingParams``, or None when no guide is sent; ``json`` alone needs no text.

    Raises:
        Refused: TF-TRI-091 for a kind that is none of :data:`GUIDES`, or a kind and a text that do not come together.
    """
    kind = scalar(tensors, "guided_decoding_guide_type")
    text = scalar(tensors, "guided_decoding_guide")
    if kind is None and text is None:
        return None
    if kind not in GUIDES:
        raise Refused(f"TF-TRI-091: guided_decoding_guide_type is {kind!r}; it is one of {', '.join(GUIDES)}")
    if (kind == "json") != (not text):
        needed = "takes no guided_decoding_guide" if text else "needs guided_decoding_guide"
        raise Refused(f"TF-TRI-091: guided_decoding_guide_type {kind} {needed}")
    return {GUIDES[kind]: text or True}


def adapter(tensors: Mapping[str, np.ndarray], folder: Path | None) -> dict[str, Any] | None:
    """Arguments of ``LoRARequest``, or None when no adapter is asked for.

    Args:
        folder: where adapters may lie; a client's path stays inside, because it is read on the server.

    Raises:
        Refused: TF-TRI-081 (not all three of id, name and path), TF-TRI-082 (not a folder below ``folder``).
    """
    sent = [name for name in _LORA if name in tensors]
    if not sent and "lora_ckpt_source" in tensors:
        raise Refused(f"TF-TRI-081: lora_ckpt_source comes with {', '.join(_LORA)}")
    if not sent:
        return None
    if len(sent) < len(_LORA):
        raise Refused(f"TF-TRI-081: {', '.join(_LORA)} come together; only {', '.join(sent)} came")
    asked = str(scalar(tensors, "lora_path"))
    if folder is None:
        raise Refused("TF-TRI-082: this server has no adapters (build.trtllm.lora in the recipe)")
    path = (folder / asked).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_dir():
        raise Refused(f"TF-TRI-082: {asked} is no adapter in the server's folder of adapters")
    return {
        "lora_name": scalar(tensors, "lora_name"),
        "lora_int_id": int(scalar(tensors, "lora_id")),
        "lora_path": str(path),
        "lora_ckpt_source": scalar(tensors, "lora_ckpt_source", "hf"),
    }


def piece(shown: str, text: str, finished: bool) -> str:
    """What to show next when ``shown`` has been shown of an answer that now reads ``text``.

    A character that may still be incomplete is held back until the end.
    """
    if not finished:
        text = text.rstrip(REPLACEMENT)
    return text[len(shown) :] if text.startswith(shown) else ""


def instance_devices(parameter: str, instance: str) -> str | None:
    """GPUs of one instance (``0,1``) from ``gpu_device_ids``; None when it is empty.

    Args:
        parameter: sets parted by semicolons.
        instance: Triton's name of the instance; its number follows the last underscore.

    Raises:
        ValueError: there is no set for it.
    """
    if not parameter:
        return None
    sets, number = parameter.split(";"), int(instance.rsplit("_", 1)[-1])
    if number >= len(sets):
        raise ValueError(f"TF-TRI-083: gpu_device_ids has {len(sets)} sets, and this is instance {number}")
    return sets[number]


def texts(values: Iterable[Any]) -> np.ndarray:
    """A STRING tensor; None becomes the empty text."""
    encoded = [b"" if value is None else str(value).encode("utf-8") for value in values]
    return np.array(encoded, dtype=np.object_)


def performance(metrics: Any) -> dict[str, np.ndarray]:
    """The tensors of ``request_perf_metrics`` (https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html)."""
    cache, times, drafts = metrics.kv_cache_metrics, metrics.timing_metrics, metrics.speculative_decoding
    integers = {
        "kv_cache_reused_block": cache.num_reused_blocks,
        "kv_cache_missed_block": cache.num_missed_blocks,
        "kv_cache_alloc_new_blocks": cache.num_new_allocated_blocks,
        "kv_cache_alloc_total_blocks": cache.num_total_allocated_blocks,
        "total_accepted_draft_tokens": drafts.total_accepted_draft_tokens,
        "total_draft_tokens": drafts.total_draft_tokens,
    }
    floats = {"kv_cache_hit_rate": cache.kv_cache_hit_rate, "acceptance_rate": drafts.acceptance_rate}
    stamps = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
    return {
        **{name: np.array([value], dtype=np.int32) for name, value in integers.items()},
        **{name: np.array([value], dtype=np.float32) for name, value in floats.items()},
        **{f"{name}_ns": np.array([_nanoseconds(getattr(times, name))], dtype=np.int64) for name in stamps},
    }


def _nanoseconds(value: timedelta) -> int:
    return (value // timedelta(microseconds=1)) * 1000
