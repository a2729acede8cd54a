"""Stands in for TensorRT-LLM's LLM API where there is none: same names, an echo for a model.

``LLM(**arguments).generate_async(prompt, params, lora_request=…, streaming=…)`` gives an object that is iterated
with ``async for``, as https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html documents it; ``outputs[i].text``
is the whole text so far. The prompt ``{arguments}`` answers with the arguments that LLM() got.
"""

import asyncio
import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace


@dataclass
class SamplingParams:
    best_of: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    max_tokens: int = 32
    stop: list = field(default_factory=list)
    seed: int = 0
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False
    logprobs: int | None = None
    guided_decoding: object = None
    use_beam_search: bool = False


class Output:
    """One request: yields itself a character at a time, held at the end of a multi-byte character's first half."""

    def __init__(self, text, params, streaming, note):
        self._text, self._params, self._streaming = text, params, streaming
        self._aborted = False
        self.finished = False
        self.outputs = [
            SimpleNamespace(text="", token_ids=[], finish_reason=None, stop_reason=None, cumulative_logprob=None)
            for _ in range(1)
        ]
        self._note = note

    def abort(self):
        self._aborted = True

    async def __aiter__(self):
        one = self.outputs[0]
        text, reason, stop = self._text[: self._params.max_tokens], "length", None
        for word in self._params.stop:
            if word in text:
                text, reason, stop = text[: text.index(word)], "stop", word
        if self._note:
            text = self._note
        for count in range(1, len(text) + 1):
            await asyncio.sleep(0.02 if self._params.temperature == 9.0 else 0)
            if self._aborted:
                one.finish_reason, self.finished = "cancelled", True
                yield self
                return
            if self._streaming and ord(text[count - 1]) > 127:
                one.text = text[: count - 1] + "\ufffd"
                yield self
            one.text, one.token_ids = text[:count], list(range(count))
            if self._streaming and count < len(text):
                yield self
        one.text, one.token_ids = text, list(range(len(text)))
        one.finish_reason, one.stop_reason, self.finished = reason, stop, True
        one.cumulative_logprob = -0.5 if self._params.logprobs else None
        if self._params.return_perf_metrics:
            second = timedelta(seconds=1)
            one.request_perf_metrics = SimpleNamespace(
                kv_cache_metrics=SimpleNamespace(
                    num_reused_blocks=1,
                    num_missed_blocks=2,
                    num_new_allocated_blocks=3,
                    num_total_allocated_blocks=4,
                    kv_cache_hit_rate=0.25,
                ),
                timing_metrics=SimpleNamespace(
                    arrival_time=second,
                    first_scheduled_time=2 * second,
                    first_token_time=3 * second,
                    last_token_time=4 * second,
                ),
                speculative_decoding=SimpleNamespace(
                    acceptance_rate=0.5, total_accepted_draft_tokens=5, total_draft_tokens=10
                ),
            )
        yield self


class CppExecutorError(RuntimeError):
    """What ``tensorrt_llm.executor`` raises when the executor died."""


class LLM:
    def __init__(self, **arguments):
        self._arguments = arguments
        if "explode" in str(arguments["model"]):
            raise RuntimeError("no such checkpoint")

    def generate_async(self, inputs, sampling_params=None, lora_request=None, streaming=False, cache_salt=None):
        note = "" if cache_salt is None else f"salted {cache_salt}"
        if inputs == "{arguments}":
            seen = {**self._arguments, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}
            note = json.dumps(seen, default=str)
        if lora_request is not None:
            note = f"{lora_request.lora_name} {lora_request.lora_int_id} {Path(lora_request.lora_path).name}"
        if sampling_params is not None and sampling_params.guided_decoding is not None:
            note = json.dumps({k: v for k, v in vars(sampling_params.guided_decoding).items() if v})
        if inputs == "fail":
            raise ValueError("the prompt was refused")
        if inputs == "die":
            raise CppExecutorError("the executor died")
        if inputs == "shut":
            self._healthy = False
            raise RuntimeError("the executor was shut down")
        return Output(inputs, sampling_params, streaming, note)

    _healthy = True

    def _check_health(self):
        return self._healthy

    def shutdown(self):
        pass
