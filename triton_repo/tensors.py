"""Tensors of the ``native`` layout: the names that clients of TensorRT-LLM's ensemble know, and ours.

One row a tensor; the configuration, the model code's reader, the docs and the smoke test all read it.
Names and types follow the ensemble of TensorRT-LLM's Triton backend (``all_models/inflight_batcher_llm``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorRow:
    """One tensor: Triton data type without the ``TYPE_`` prefix, dims without the batch axis.

    ``scalar``: the model sees one value a request (``reshape { shape: [] }``). ``ragged``: requests of different
    lengths may be batched without padding.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool
    meaning: str
    scalar: bool = False
    ragged: bool = False


INPUTS: tuple[TensorRow, ...] = (
    TensorRow("text_input", "STRING", (1,), False, "the prompt, or a user message when `chat` is true"),
    TensorRow("max_tokens", "INT32", (1,), False, "tokens to generate at most"),
    TensorRow("stream", "BOOL", (1,), True, "one response a piece of text instead of one in all; default false"),
    TensorRow("chat", "BOOL", (1,), True, "put text_input through the model's chat template; default false"),
    TensorRow("temperature", "FP32", (1,), True, "default 1.0; 0 means greedy"),
    TensorRow("top_k", "INT32", (1,), True, "keep the k likeliest tokens; default 1 (greedy); 0 keeps all"),
    TensorRow("top_p", "FP32", (1,), True, "keep the smallest set of that probability; default 1.0"),
    TensorRow("min_p", "FP32", (1,), True, "drop tokens below this share of the likeliest one; default 0"),
    TensorRow("repetition_penalty", "FP32", (1,), True, "divides the logits of tokens already seen; default 1.0"),
    TensorRow("presence_penalty", "FP32", (1,), True, "subtracted once from generated tokens; default 0"),
    TensorRow("frequency_penalty", "FP32", (1,), True, "subtracted for each occurrence; default 0"),
    TensorRow("min_tokens", "INT32", (1,), True, "no end of sequence and no stop word before; default 0"),
    TensorRow("seed", "UINT64", (1,), True, "same seed, same output, whatever else is in the batch"),
    TensorRow("random_seed", "UINT64", (1,), True, "the older name of `seed`"),
    TensorRow("stop_words", "STRING", (-1,), True, "text at which the answer ends; not part of the answer"),
    TensorRow("bad_words", "STRING", (-1,), True, "text that is never generated"),
    TensorRow("end_id", "INT32", (1,), True, "end-of-sequence token; default the model's"),
    TensorRow("pad_id", "INT32", (1,), True, "accepted for compatibility; nothing is padded"),
    TensorRow("return_log_probs", "BOOL", (1,), True, "fill cum_log_probs and output_log_probs"),
    TensorRow("exclude_input_in_output", "BOOL", (1,), True, "default true; false puts the prompt before the answer"),
    TensorRow("length_penalty", "FP32", (1,), True, "accepted for compatibility; it weighs beams"),
    TensorRow("beam_width", "INT32", (1,), True, "accepted when 1: beam search is not offered"),
    TensorRow("priority", "INT32", (1,), True, "higher goes first; default 0"),
    TensorRow("timeout_ms", "INT32", (1,), True, "deadline from arrival; the answer so far is then returned"),
)

OUTPUTS: tuple[TensorRow, ...] = (
    TensorRow("text_output", "STRING", (-1,), False, "the answer, or the next piece of it"),
    TensorRow("finish_reason", "STRING", (-1,), False, "empty until the end, then stop, length, timeout or cancelled"),
    TensorRow("cum_log_probs", "FP32", (-1,), False, "sum of the log-probabilities of the generated tokens"),
    TensorRow("output_log_probs", "FP32", (-1, -1), False, "log-probability of each new token: [beams = 1, tokens]"),
    TensorRow("num_input_tokens", "INT32", (-1,), False, "tokens of the prompt"),
    TensorRow("num_output_tokens", "INT32", (-1,), False, "tokens generated so far"),
)
