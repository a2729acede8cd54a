"""What each layout calls what an OpenAI client asks for: one table, held against the layouts' own tables by a test.

A field that a layout has no name for is not offered there, and a request that needs it is refused by the name that its
client knows. The names that a repository really has are those of its ``config.pbtxt`` (:mod:`.deployment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtforge.targets.layouts import INFLIGHT_BATCHER, LLM_API, NATIVE, Layout

#: fields that every layout has by the same name
_SAMPLING = ("top_k", "top_p", "temperature", "presence_penalty", "frequency_penalty", "seed")
_ENSEMBLE = {
    **{name: name for name in (*_SAMPLING, "max_tokens", "stream", "repetition_penalty", "min_tokens")},
    "n": "num_return_sequences",
    "stop": "stop_words",
    "guide_type": "guided_decoding_guide_type",
    "guide": "guided_decoding_guide",
}
_ENSEMBLE_OUTPUTS = {
    "text": "text_output",
    "index": "sequence_index",
    "finish": "finish_reason",
    "output_tokens": "num_output_tokens",
    "cached_blocks": "kv_cache_reused_blocks",
}

#: field of a job → what an OpenAI client calls it, where that is another name
_CLIENTS = {
    "tokens": "prompt",
    "text": "prompt",
    "bias": "logit_bias",
    "bias_words": "logit_bias",
    "bias_weights": "logit_bias",
    "guide": "response_format",
    "guide_type": "response_format",
}
#: llguidance lets any white space stand between a JSON text's parts, and a model can write it without end
COMPACT: Mapping[str, Any] = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}


@dataclass(frozen=True)
class LayoutNames:
    """A layout's names.

    Attributes:
        inputs: field of :class:`~launcher.openai_front.job.Job` → input tensor. ``tokens`` or ``text`` is the prompt.
        outputs: field of :class:`~launcher.openai_front.job.Piece` → output tensor.
        switches: field of a piece → the BOOL input that has it filled.
        greedy: what makes an answer greedy; where nothing does, ``temperature`` 0 does.
        draws_seed: the engine draws a seed itself; elsewhere every answer without one has the same.
        schema: members that every schema gets, for the library that reads it.
        lark: grammars in Lark are read.
    """

    layout: Layout
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    switches: Mapping[str, str] = field(default_factory=dict)
    greedy: Mapping[str, int] = field(default_factory=dict)
    draws_seed: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)
    lark: bool = False

    @property
    def clients(self) -> dict[str, str]:
        """Input tensor → what an OpenAI client calls it, where that is another name."""
        called = {tensor: client_name(name) for name, tensor in self.inputs.items()}
        return {tensor: name for tensor, name in called.items() if name != tensor}

    @property
    def takes_tokens(self) -> bool:
        """Whether the prompt goes as tokens; else as text, which the server tokenizes."""
        return "tokens" in self.inputs


NAMES: tuple[LayoutNames, ...] = (
    LayoutNames(
        NATIVE,
        inputs={
            **_ENSEMBLE,
            "tokens": "input_ids",
            "without_prompt": "exclude_input_in_output",
            "min_p": "min_p",
            "bias": "embedding_bias",
            "timeout_ms": "timeout_ms",
            "priority": "priority",
            "cache_salt": "cache_salt",
        },
        outputs={
            **_ENSEMBLE_OUTPUTS,
            "cached_tokens": "num_cached_tokens",
            "token_ids": "output_ids",
            "log_probs": "output_log_probs",
        },
        switches={"log_probs": "return_log_probs", "cached_blocks": "return_perf_metrics"},
        draws_seed=True,
        schema=COMPACT,
        lark=True,
    ),
    LayoutNames(
        INFLIGHT_BATCHER,
        inputs={
            **_ENSEMBLE,
            "text": "text_input",
            "without_prompt": "exclude_input_in_output",
            "bias_words": "embedding_bias_words",
            "bias_weights": "embedding_bias_weights",
        },
        outputs=_ENSEMBLE_OUTPUTS,
        switches={"cached_blocks": "return_perf_metrics"},
        greedy={"top_k": 1},
    ),
    LayoutNames(
        LLM_API,
        inputs={
            **{name: f"sampling_param_{name}" for name in (*_SAMPLING, "max_tokens", "stop")},
            "text": "text_input",
            "stream": "streaming",
            "cache_salt": "cache_salt",
            "guide_type": "guided_decoding_guide_type",
            "guide": "guided_decoding_guide",
        },
        outputs={
            "text": "text_output",
            "finish": "finish_reason",
            "output_tokens": "num_output_tokens",
            "cached_blocks": "kv_cache_reused_block",
        },
        switches={"finish": "return_finish_reason", "cached_blocks": "sampling_param_return_perf_metrics"},
        greedy={"top_k": 1},
    ),
)


def client_name(field: str) -> str:
    """What an OpenAI client calls a field of a job."""
    return _CLIENTS.get(field, field)


def names_of(layout: Layout) -> LayoutNames:
    """The names of one layout."""
    return next(row for row in NAMES if row.layout is layout)
