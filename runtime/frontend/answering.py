"""The runtime's outputs as a client's tensors, in the shapes of TensorRT-LLM's ``ensemble`` and ``tensorrt_llm``.

One response holds one sequence: ``text_output`` [1], for a prompt in tokens ``output_ids`` [1, 1, tokens], and whatever
counts one value [1, 1]. ``batch_index`` and ``sequence_index`` say whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.frontend.asking import Asked
from runtime.request import RequestOutput, RequestTimes, SampleOutput

Arrays = dict[str, npt.NDArray[Any]]


class Answer:
    """The responses to one prompt.

    Args:
        asked: the prompt and what its client wants to know.
        row: its number in the client's request.
        wanted: names of the outputs that the client takes.
        block_size: tokens a KV block, for the counts of reused blocks.
        speculates: the engine drafts: every response then has the counts of drafts.
    """

    def __init__(
        self, asked: Asked, row: int, wanted: Collection[str], block_size: int, *, speculates: bool = False
    ) -> None:
        self._asked = asked
        self._row = row
        self._wanted = wanted
        self._block_size = block_size
        self._speculates = speculates
        self._makers: dict[str, Callable[[RequestOutput, SampleOutput], npt.NDArray[Any]]] = {
            "text_output": self._text,
            "batch_index": lambda *_: _i32([[self._row]]),
            "sequence_index": lambda _, sample: _i32([[sample.index]]),
            "finish_reason": lambda _, sample: np.array([[str(sample.finish_reason or "").encode()]], dtype=np.object_),
            "num_input_tokens": lambda output, _: _i32([[output.num_prompt_tokens]]),
            "num_output_tokens": lambda _, sample: _i32([[self._count(sample)]]),
            "num_cached_tokens": lambda output, _: _i32([[output.num_cached_tokens]]),
        }
        if asked.tokens:
            self._makers |= {
                "output_ids": lambda _, sample: _i32([[self._tokens(sample)]]),
                "sequence_length": lambda _, sample: _i32([[len(self._tokens(sample))]]),
            }
        if asked.log_probs:
            self._makers |= {"cum_log_probs": _cumulative, "output_log_probs": self._log_probs}

    def responses(self, output: RequestOutput) -> Iterator[Arrays]:
        """The tensors of each response, one a sample with news."""
        for sample in output.samples:
            arrays = {name: make(output, sample) for name, make in self._makers.items() if name in self._wanted}
            if sample.finish_reason is not None and "max_tokens_granted" in self._wanted:
                arrays["max_tokens_granted"] = _i32([[output.max_tokens]])
            if output.prompt_characters_removed and "prompt_characters_removed" in self._wanted:
                arrays["prompt_characters_removed"] = _i32([[output.prompt_characters_removed]])
            if self._asked.metrics:
                arrays |= self._picked(performance(output, self._block_size))
            if self._asked.metrics or self._speculates:
                arrays |= self._picked(drafts(sample))
            yield arrays

    def _picked(self, arrays: Arrays) -> Arrays:
        return {name: array for name, array in arrays.items() if name in self._wanted}

    def _count(self, sample: SampleOutput) -> int:
        return len(sample.token_ids) if self._asked.own_counts else sample.num_tokens

    def _text(self, output: RequestOutput, sample: SampleOutput) -> npt.NDArray[Any]:
        return np.array([(self._asked.echo + sample.text).encode()], dtype=np.object_)

    def _tokens(self, sample: SampleOutput) -> list[int]:
        tokens = [*self._asked.echo_tokens, *sample.token_ids]
        return tokens[:-1] if self._ends_with_end_token(sample) else tokens

    def _log_probs(self, output: RequestOutput, sample: SampleOutput) -> npt.NDArray[Any]:
        values = [entry.logprob for entry in sample.logprobs or ()]
        if self._ends_with_end_token(sample):
            values.pop()
        return np.array([[values]], dtype=np.float32)

    def _ends_with_end_token(self, sample: SampleOutput) -> bool:
        """TensorRT-LLM leaves the token that ends a sequence out of its tokens."""
        return self._asked.tokens and bool(sample.token_ids) and sample.stop_reason == sample.token_ids[-1]


def _cumulative(output: RequestOutput, sample: SampleOutput) -> npt.NDArray[Any]:
    return np.array([[sample.cumulative_logprob or 0.0]], dtype=np.float32)


def performance(output: RequestOutput, block_size: int) -> Arrays:
    """What ``return_perf_metrics`` asks for: KV blocks, and times in nanoseconds on the engine's steady clock.

    A stream's earlier responses hold the figures so far.
    """
    reused = output.num_cached_tokens // block_size
    times = output.times or RequestTimes(0.0)
    stamps = {
        "arrival_time_ns": times.arrival,
        "first_scheduled_time_ns": times.first_scheduled,
        "first_token_time_ns": times.first_token,
        "last_token_time_ns": times.last_token,
    }
    return {
        "kv_cache_reused_blocks": _i32([[reused]]),
        "kv_cache_alloc_new_blocks": _i32([[max(0, output.num_blocks - reused)]]),
        "kv_cache_alloc_total_blocks": _i32([[output.num_blocks]]),
        **{name: np.array([[int((value or 0.0) * 1e9)]], dtype=np.int64) for name, value in stamps.items()},
    }


def drafts(sample: SampleOutput) -> Arrays:
    """Draft tokens of one sequence so far, how many of them were accepted, and their share; 0 where none was made."""
    drafted, accepted = sample.num_draft_tokens, sample.num_accepted_tokens
    return {
        "acceptance_rate": np.array([[accepted / drafted if drafted else 0.0]], dtype=np.float32),
        "total_accepted_draft_tokens": _i32([[accepted]]),
        "total_draft_tokens": _i32([[drafted]]),
    }


def _i32(values: list[Any]) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
