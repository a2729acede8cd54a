"""Tensors of the ``native`` layout: the whole contract of TensorRT-LLM's ``ensemble`` and ``tensorrt_llm``, and ours.

One row a tensor; the configuration and the models with the names that clients fix are made of them. Names and types
follow TensorRT-LLM's Triton backend (:mod:`triton_repo.layouts.ifb_tensors`). Where ``tensorrt_llm`` calls the same
thing otherwise than ``ensemble`` does, the native model has the ensemble's name. What the runtime cannot honour is
declared too, so that it is refused by name (``runtime/frontend/offered.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from triton_repo.layouts.ifb_tensors import BLS_INPUTS, BLS_OUTPUTS, ENGINE_INPUTS, ENGINE_OUTPUTS, typed
from triton_repo.tensors import TensorRow

#: name in ``tensorrt_llm`` → name in the native model
FROM_ENGINE: Mapping[str, str] = {
    "request_output_len": "max_tokens",
    "streaming": "stream",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "runtime_top_p_min": "top_p_min",
    "runtime_top_p_decay": "top_p_decay",
    "runtime_top_p_reset_ids": "top_p_reset_ids",
    "len_penalty": "length_penalty",
}

_NATIVE_INPUTS: tuple[TensorRow, ...] = (
    TensorRow("text_input", "STRING", (1,), True, "the prompt, or a user message when `chat` is true; or input_ids"),
    TensorRow("max_tokens", "INT32", (1,), True, "tokens to generate at most; a request without it is refused"),
    TensorRow("stream", "BOOL", (1,), True, "one response a piece of text instead of one in all; default false"),
    TensorRow("chat", "BOOL", (1,), True, "put text_input through the model's chat template; default false"),
    TensorRow("temperature", "FP32", (1,), True, "0 means greedy; 1, or left out: greedy unless a choice is asked for"),
    TensorRow("top_k", "INT32", (1,), True, "keep the k likeliest tokens; over 1 asks for a choice"),
    TensorRow("top_p", "FP32", (1,), True, "keep the smallest set of that probability; over 0 asks for a choice"),
    TensorRow("min_p", "FP32", (1,), True, "drop tokens below this share of the likeliest one; default 0"),
    TensorRow("repetition_penalty", "FP32", (1,), True, "divides the logits of tokens already seen; default 1.0"),
    TensorRow("presence_penalty", "FP32", (1,), True, "subtracted once from generated tokens; default 0"),
    TensorRow("frequency_penalty", "FP32", (1,), True, "subtracted for each occurrence; default 0"),
    TensorRow("min_tokens", "INT32", (1,), True, "no end of sequence and no stop word before; default 0"),
    TensorRow("seed", "UINT64", (1,), True, "same seed, same output, whatever else is in the batch"),
    TensorRow("random_seed", "UINT64", (1,), True, "the older name of `seed`"),
    TensorRow("num_return_sequences", "INT32", (1,), True, "samples of the prompt; default 1"),
    TensorRow("stop_words", "STRING", (-1,), True, "text at which the answer ends; not part of the answer"),
    TensorRow("bad_words", "STRING", (-1,), True, "text that is never generated"),
    TensorRow("embedding_bias_words", "STRING", (-1,), True, "words whose tokens get a bias"),
    TensorRow("embedding_bias_weights", "FP32", (-1,), True, "the bias of each word, added to the logits"),
    TensorRow("guided_decoding_guide_type", "STRING", (1,), True, "json, json_schema, regex or ebnf_grammar"),
    TensorRow("guided_decoding_guide", "STRING", (1,), True, "the schema, expression or grammar"),
    TensorRow("end_id", "INT32", (1,), True, "end-of-sequence token; default the model's, -1: none"),
    TensorRow("pad_id", "INT32", (1,), True, "accepted for compatibility; nothing is padded"),
    TensorRow("return_log_probs", "BOOL", (1,), True, "fill cum_log_probs and output_log_probs"),
    TensorRow("return_perf_metrics", "BOOL", (1,), True, "fill the outputs of cache, time and speculation"),
    TensorRow("return_num_input_tokens", "BOOL", (1,), True, "accepted for compatibility; it is always there"),
    TensorRow(
        "return_num_output_tokens",
        "BOOL",
        (1,),
        True,
        "true: each response counts its own tokens, as TensorRT-LLM does",
    ),
    TensorRow("exclude_input_in_output", "BOOL", (1,), True, "false puts the prompt before a whole answer"),
    TensorRow("length_penalty", "FP32", (1,), True, "accepted for compatibility; it weighs beams"),
    TensorRow("beam_width", "INT32", (1,), True, "accepted when 1: beam search is not offered"),
    TensorRow("priority", "INT32", (1,), True, "higher goes first; default 0"),
    TensorRow("timeout_ms", "INT32", (1,), True, "deadline from arrival; the answer so far is then returned"),
    TensorRow(
        "speculate", "BOOL", (1,), True, "false: no drafts for this request; default true, where the engine has any"
    ),
    TensorRow("messages", "STRING", (1,), True, "a chat instead of text_input: JSON, a list of {role, content}"),
    TensorRow("cache_salt", "STRING", (1,), True, "shares cached prefixes with requests of the same salt alone"),
    TensorRow(
        "stream_interval", "INT32", (1,), True, "tokens a streamed response; default the server's, the first at once"
    ),
    TensorRow("stop", "BOOL", (1,), True, "end the running request with this request id"),
    TensorRow("input_ids", "INT32", (-1,), True, "the prompt as tokens"),
    TensorRow("input_lengths", "INT32", (1,), True, "tokens of input_ids that count; default all"),
    TensorRow("stop_words_list", "INT32", (2, -1), True, "row 0 tokens, row 1 where each word ends, -1 beyond"),
    TensorRow("bad_words_list", "INT32", (2, -1), True, "the same for words that are never generated"),
    TensorRow("embedding_bias", "FP32", (-1,), True, "added to the logits: one value a vocabulary entry"),
)
_NATIVE_OUTPUTS: tuple[TensorRow, ...] = (
    TensorRow("max_tokens_granted", "INT32", (1,), False, "max_tokens, or fewer where the context ends sooner"),
    TensorRow("prompt_characters_removed", "INT32", (1,), False, "what serving.cleanse took out, where it took any"),
    TensorRow("num_cached_tokens", "INT32", (1,), False, "tokens of the prompt that the prefix cache supplied"),
)


def _others(rows: Iterable[TensorRow], known: Iterable[TensorRow]) -> list[TensorRow]:
    """Rows of TensorRT-LLM under the native names, each once and without those that are known already."""
    found: dict[str, TensorRow] = {}
    own = {row.name for row in known}
    for row in rows:
        name = FROM_ENGINE.get(row.name, row.name)
        found.setdefault(name, replace(row, name=name, scalar=False, ragged=False))
    return [row for name, row in found.items() if name not in own]


def _typed(rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    return tuple(typed(rows, logits="FP32", weights="FP16"))


INPUTS: tuple[TensorRow, ...] = _typed((*_NATIVE_INPUTS, *_others((*BLS_INPUTS, *ENGINE_INPUTS), _NATIVE_INPUTS)))
#: inputs and outputs of ours that models with other names have too, so that nothing is silent there
_OWN = ("min_p", "priority", "timeout_ms", "speculate", "cache_salt", "stream_interval")
OWN_INPUTS = tuple(row for row in _NATIVE_INPUTS if row.name in _OWN)
OWN_OUTPUTS: tuple[TensorRow, ...] = (*_NATIVE_OUTPUTS, *(row for row in BLS_OUTPUTS if row.name == "finish_reason"))
OUTPUTS: tuple[TensorRow, ...] = _typed((*_NATIVE_OUTPUTS, *_others((*BLS_OUTPUTS, *ENGINE_OUTPUTS), _NATIVE_OUTPUTS)))
