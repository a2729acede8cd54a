"""Tensors of the ``inflight_batcher_llm`` layout: names, types, dims and reshapes of TensorRT-LLM 1.2.1.

Source: ``triton_backend/all_models/inflight_batcher_llm/*/config.pbtxt`` of
https://github.com/NVIDIA/TensorRT-LLM/tree/v1.2.1. Three types depend on the engine and are written here as
``logits`` (of the logits), ``weights`` (of prompt tables and LoRA weights) and ``features`` (of an encoder's
input). NVIDIA's own file fixes ``lora_weights`` to FP16, which serves a bfloat16 engine wrongly (TB#750).
Multimodal inputs and outputs of preprocessing and BLS are left out: this layout serves text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from triton_repo.tensors import TensorRow


def _one(name: str, dtype: str, meaning: str, *, optional: bool = True) -> TensorRow:
    return TensorRow(name, dtype, (1,), optional, meaning, scalar=True)


def _many(name: str, dtype: str, meaning: str, dims: tuple[int, ...] = (-1,)) -> TensorRow:
    return TensorRow(name, dtype, dims, True, meaning, ragged=True)


#: the 62 inputs of ``tensorrt_llm``
ENGINE_INPUTS: tuple[TensorRow, ...] = (
    _many("input_ids", "INT32", "tokens of the prompt"),
    _many("encoder_input_features", "features", "features for an encoder engine", (-1, -1)),
    _one("encoder_output_lengths", "INT32", "tokens that the encoder makes"),
    _one("input_lengths", "INT32", "tokens of the prompt that count", optional=False),
    _one("request_output_len", "INT32", "tokens to generate at most", optional=False),
    _one("num_return_sequences", "INT32", "sequences a request returns; default 1"),
    _many("draft_input_ids", "INT32", "draft tokens to verify"),
    _many("decoder_input_ids", "INT32", "first tokens of the decoder (encoder-decoder engines)"),
    _one("decoder_input_lengths", "INT32", "how many of them count"),
    _many("draft_logits", "logits", "logits of the draft tokens", (-1, -1)),
    _one("draft_acceptance_threshold", "FP32", "probability above which a draft token is accepted"),
    _one("end_id", "INT32", "token that ends a sequence; -1: none"),
    _one("pad_id", "INT32", "token that fills what has no content"),
    _many("stop_words_list", "INT32", "row 0 tokens, row 1 where each word ends, -1 beyond the last", (2, -1)),
    _many("bad_words_list", "INT32", "the same for words that are never generated", (2, -1)),
    _many("embedding_bias", "FP32", "added to the logits: one value a vocabulary entry"),
    _one("beam_width", "INT32", "beams; at most max_beam_width"),
    _one("temperature", "FP32", "divides the logits"),
    _one("runtime_top_k", "INT32", "keep the k likeliest tokens"),
    _one("runtime_top_p", "FP32", "keep the smallest set of that probability"),
    _one("runtime_top_p_min", "FP32", "floor of a decaying top_p"),
    _one("runtime_top_p_decay", "FP32", "factor of top_p after each token"),
    _one("runtime_top_p_reset_ids", "INT32", "token after which top_p starts again"),
    _one("len_penalty", "FP32", "beam search: exponent of the length"),
    _one("early_stopping", "BOOL", "beam search: end when enough beams have ended"),
    _one("repetition_penalty", "FP32", "divides the logits of tokens already seen"),
    _one("min_tokens", "INT32", "no end of sequence before"),
    _one("beam_search_diversity_rate", "FP32", "beam search: how far beams are pushed apart"),
    _one("presence_penalty", "FP32", "subtracted once from generated tokens"),
    _one("frequency_penalty", "FP32", "subtracted for each occurrence"),
    _one("seed", "UINT64", "of the sampling"),
    _one("return_log_probs", "BOOL", "fill cum_log_probs and output_log_probs"),
    _one("return_context_logits", "BOOL", "needs an engine that gathers context logits"),
    _one("return_generation_logits", "BOOL", "needs an engine that gathers generation logits"),
    _one("return_perf_metrics", "BOOL", "fill the outputs of cache, time and speculation"),
    _one("return_num_input_tokens", "BOOL", "fill num_input_tokens"),
    _one("return_num_output_tokens", "BOOL", "fill num_output_tokens"),
    _one("exclude_input_in_output", "BOOL", "leave the prompt's tokens out of output_ids"),
    _one("stop", "BOOL", "end the running request with this request id"),
    _one("streaming", "BOOL", "one response a step; needs a decoupled model"),
    _many("prompt_embedding_table", "weights", "embeddings for token numbers over the vocabulary", (-1, -1)),
    _many("prompt_table_extra_ids", "UINT64", "tell equal virtual tokens apart for KV reuse"),
    _one("prompt_vocab_size", "INT32", "rows of prompt_embedding_table"),
    _many("cross_attention_mask", "BOOL", "which encoder tokens a prompt token sees", (-1, -1)),
    TensorRow("mrope_rotary_cos_sin", "FP32", (-1,), True, "rotary table of multimodal positions"),
    TensorRow("mrope_position_deltas", "INT64", (1,), True, "offset of the positions after the media"),
    _one("lora_task_id", "UINT64", "adapter; its weights are sent once and cached"),
    _many("lora_weights", "weights", "rows [modules and layers, D*Hi + Ho*D]", (-1, -1)),
    _many("lora_config", "INT32", "rows [module, layer, rank]", (-1, 3)),
    _many("context_phase_params", "UINT8", "state of a prefill made elsewhere (disaggregated serving)"),
    TensorRow("skip_cross_attn_blocks", "BOOL", (1,), True, "text-only request to a vision model", ragged=True),
    _many("retention_token_range_starts", "INT32", "KV retention: first token of each range"),
    _many("retention_token_range_ends", "INT32", "KV retention: end of each range"),
    _many("retention_token_range_priorities", "INT32", "KV retention: priority 0-100 of each range"),
    _many("retention_token_range_durations_ms", "INT32", "KV retention: how long each range keeps it"),
    TensorRow("retention_decode_priority", "INT32", (1,), True, "KV retention: priority of the answer", ragged=True),
    TensorRow("retention_decode_duration_ms", "INT32", (1,), True, "KV retention: how long", ragged=True),
    TensorRow("guided_decoding_guide_type", "STRING", (1,), True, "json, json_schema, regex, ebnf", ragged=True),
    TensorRow("guided_decoding_guide", "STRING", (1,), True, "the schema, expression or grammar", ragged=True),
    TensorRow("lookahead_window_size", "INT32", (1,), True, "at most the server's", ragged=True),
    TensorRow("lookahead_ngram_size", "INT32", (1,), True, "at most the server's", ragged=True),
    TensorRow("lookahead_verification_set_size", "INT32", (1,), True, "at most the server's", ragged=True),
)  # fmt: skip


def _out(name: str, dtype: str, dims: tuple[int, ...], meaning: str) -> TensorRow:
    return TensorRow(name, dtype, dims, False, meaning)


_LOG_PROBS_AND_LOGITS = (
    _out("cum_log_probs", "FP32", (-1,), "sum of the log-probabilities, one a beam"),
    _out("output_log_probs", "FP32", (-1, -1), "log-probability of each token: [beams, tokens]"),
    _out("context_logits", "logits", (-1, -1), "[prompt tokens, vocabulary]"),
    _out("generation_logits", "logits", (-1, -1, -1), "[beams, tokens, vocabulary]"),
    _out("batch_index", "INT32", (1,), "which row of the request this response belongs to"),
    _out("sequence_index", "INT32", (1,), "which of num_return_sequences"),
)
_METRICS = (
    _out("kv_cache_alloc_new_blocks", "INT32", (1,), "KV blocks newly taken"),
    _out("kv_cache_reused_blocks", "INT32", (1,), "KV blocks found in the cache"),
    _out("kv_cache_alloc_total_blocks", "INT32", (1,), "both together"),
    _out("arrival_time_ns", "INT64", (1,), "when the executor got the request"),
    _out("first_scheduled_time_ns", "INT64", (1,), "when it first ran"),
    _out("first_token_time_ns", "INT64", (1,), "when its first token was there"),
    _out("last_token_time_ns", "INT64", (1,), "when its last token was there"),
    _out("acceptance_rate", "FP32", (1,), "accepted share of the draft tokens"),
    _out("total_accepted_draft_tokens", "INT32", (1,), "draft tokens accepted"),
    _out("total_draft_tokens", "INT32", (1,), "draft tokens made"),
    _out("num_input_tokens", "INT32", (1,), "tokens of the prompt"),
    _out("num_output_tokens", "INT32", (1,), "tokens of the answer"),
)
#: the 21 outputs of ``tensorrt_llm``
ENGINE_OUTPUTS: tuple[TensorRow, ...] = (
    _out("output_ids", "INT32", (-1, -1), "[beams, tokens]; when streaming, the new tokens only"),
    _out("sequence_length", "INT32", (-1,), "how many of them count, one a beam"),
    *_LOG_PROBS_AND_LOGITS,
    _out("context_phase_params", "UINT8", (-1,), "state for a decoder elsewhere"),
    *_METRICS,
)

PREPROCESSING_INPUTS: tuple[TensorRow, ...] = (
    TensorRow("QUERY", "STRING", (1,), True, "the prompt; a request without it is refused"),
    TensorRow("DECODER_QUERY", "STRING", (1,), True, "text that the decoder starts with"),
    TensorRow("REQUEST_OUTPUT_LEN", "INT32", (1,), True, "tokens to generate at most; refused without"),
    TensorRow("BAD_WORDS_DICT", "STRING", (-1,), True, "words that are never generated"),
    TensorRow("STOP_WORDS_DICT", "STRING", (-1,), True, "words at which the answer ends"),
    TensorRow("EMBEDDING_BIAS_WORDS", "STRING", (-1,), True, "words whose tokens get a bias"),
    TensorRow("EMBEDDING_BIAS_WEIGHTS", "FP32", (-1,), True, "the bias of each word"),
    TensorRow("END_ID", "INT32", (1,), True, "default: the tokenizer's end of sequence"),
    TensorRow("PAD_ID", "INT32", (1,), True, "default: the tokenizer's padding, else its end"),
    TensorRow("PROMPT_TABLE_EXTRA_ID", "UINT64", (1,), True, "for every virtual token of the prompt"),
    TensorRow("CHAT", "BOOL", (1,), True, "put QUERY through the chat template; ours, not NVIDIA's"),
)
PREPROCESSING_OUTPUTS: tuple[TensorRow, ...] = (
    _out("INPUT_ID", "INT32", (-1,), "tokens, padded to the longest row"),
    _out("REQUEST_INPUT_LEN", "INT32", (1,), "tokens that count"),
    _out("DECODER_INPUT_ID", "INT32", (-1,), "tokens of DECODER_QUERY, else the padding token"),
    _out("REQUEST_DECODER_INPUT_LEN", "INT32", (1,), "how many of them count"),
    _out("BAD_WORDS_IDS", "INT32", (2, -1), "flattened words and their ends"),
    _out("STOP_WORDS_IDS", "INT32", (2, -1), "flattened words and their ends"),
    _out("EMBEDDING_BIAS", "FP32", (-1,), "one value a vocabulary entry; empty without a bias"),
    _out("REQUEST_OUTPUT_LEN", "INT32", (-1,), "as it came"),
    _out("OUT_END_ID", "INT32", (1,), "END_ID or its default"),
    _out("OUT_PAD_ID", "INT32", (1,), "PAD_ID or its default"),
    _out("OUT_PROMPT_TABLE_EXTRA_IDS", "UINT64", (-1,), "the extra id where the token is virtual, else 0"),
)
POSTPROCESSING_INPUTS: tuple[TensorRow, ...] = (
    TensorRow("TOKENS_BATCH", "INT32", (-1, -1), False, "[beams, tokens]"),
    TensorRow("SEQUENCE_LENGTH", "INT32", (-1,), False, "tokens that count, one a beam"),
)
POSTPROCESSING_OUTPUTS: tuple[TensorRow, ...] = (_out("OUTPUT", "STRING", (-1,), "text, one a beam"),)

_SAMPLING = (
    # Triton counts required inputs without looking which they are, so these two are refused by our own models
    TensorRow("text_input", "STRING", (1,), True, "the prompt, or a user message when `chat` is true; required"),
    TensorRow("decoder_text_input", "STRING", (1,), True, "text that the decoder starts with"),
    TensorRow("max_tokens", "INT32", (1,), True, "tokens to generate at most; required"),
    TensorRow("num_return_sequences", "INT32", (1,), True, "sequences a request returns"),
    TensorRow("bad_words", "STRING", (-1,), True, "words that are never generated"),
    TensorRow("stop_words", "STRING", (-1,), True, "words at which the answer ends"),
    TensorRow("exclude_input_in_output", "BOOL", (1,), True, "false puts the prompt before a whole answer"),
    TensorRow("end_id", "INT32", (1,), True, "end-of-sequence token; default the tokenizer's"),
    TensorRow("pad_id", "INT32", (1,), True, "padding token; default the tokenizer's"),
    TensorRow("top_k", "INT32", (1,), True, "keep the k likeliest tokens"),
    TensorRow("top_p", "FP32", (1,), True, "keep the smallest set of that probability"),
    TensorRow("temperature", "FP32", (1,), True, "divides the logits"),
    TensorRow("length_penalty", "FP32", (1,), True, "beam search: exponent of the length"),
    TensorRow("repetition_penalty", "FP32", (1,), True, "divides the logits of tokens already seen"),
    TensorRow("min_tokens", "INT32", (1,), True, "no end of sequence before"),
    TensorRow("presence_penalty", "FP32", (1,), True, "subtracted once from generated tokens"),
    TensorRow("frequency_penalty", "FP32", (1,), True, "subtracted for each occurrence"),
    TensorRow("seed", "UINT64", (1,), True, "of the sampling"),
    TensorRow("return_log_probs", "BOOL", (1,), True, "fill cum_log_probs and output_log_probs"),
    TensorRow("return_context_logits", "BOOL", (1,), True, "needs an engine that gathers them"),
    TensorRow("return_generation_logits", "BOOL", (1,), True, "needs an engine that gathers them"),
    TensorRow("return_perf_metrics", "BOOL", (1,), True, "fill the outputs of cache, time and speculation"),
    TensorRow("return_num_input_tokens", "BOOL", (1,), True, "fill num_input_tokens"),
    TensorRow("return_num_output_tokens", "BOOL", (1,), True, "fill num_output_tokens"),
    TensorRow("beam_width", "INT32", (1,), True, "beams; 1 when streaming"),
    TensorRow("stream", "BOOL", (1,), True, "one response a piece of text; needs a decoupled repository"),
    TensorRow("prompt_embedding_table", "weights", (-1, -1), True, "embeddings of virtual tokens"),
    TensorRow("prompt_table_extra_id", "UINT64", (1,), True, "tells equal virtual tokens apart for KV reuse"),
    TensorRow("prompt_vocab_size", "INT32", (1,), True, "rows of prompt_embedding_table"),
    TensorRow("embedding_bias_words", "STRING", (-1,), True, "words whose tokens get a bias"),
    TensorRow("embedding_bias_weights", "FP32", (-1,), True, "the bias of each word"),
    TensorRow("lora_task_id", "UINT64", (1,), True, "adapter; its weights are sent once and cached"),
    TensorRow("lora_weights", "weights", (-1, -1), True, "rows [modules and layers, D*Hi + Ho*D]", ragged=True),
    TensorRow("lora_config", "INT32", (-1, 3), True, "rows [module, layer, rank]", ragged=True),
    TensorRow("guided_decoding_guide_type", "STRING", (1,), True, "json, json_schema, regex, ebnf_grammar"),
    TensorRow("guided_decoding_guide", "STRING", (1,), True, "the schema, expression or grammar"),
    TensorRow("chat", "BOOL", (1,), True, "put text_input through the chat template; ours, not NVIDIA's"),
)
#: what clients send to ``ensemble``
ENSEMBLE_INPUTS: tuple[TensorRow, ...] = _SAMPLING
ENSEMBLE_OUTPUTS: tuple[TensorRow, ...] = (
    _out("text_output", "STRING", (-1,), "text, one a beam"),
    *_LOG_PROBS_AND_LOGITS,
    *_METRICS,
)
#: what clients send to ``tensorrt_llm_bls``
BLS_INPUTS: tuple[TensorRow, ...] = (
    *_SAMPLING,
    TensorRow("random_seed", "UINT64", (1,), True, "the older name of seed"),
    TensorRow("num_draft_tokens", "INT32", (1,), True, "tokens that the draft model guesses a round; 0: none"),
    TensorRow("use_draft_logits", "BOOL", (1,), True, "accept drafts by their logits instead of by equality"),
)
BLS_OUTPUTS: tuple[TensorRow, ...] = (
    *ENSEMBLE_OUTPUTS,
    _out("finish_reason", "STRING", (-1,), "empty until the end, then stop or length; ours, not NVIDIA's"),
    _out("max_tokens_granted", "INT32", (1,), "max_tokens, or fewer where the context ends sooner; ours, not NVIDIA's"),
)

#: client's name → name in ``tensorrt_llm``, where a tensor goes straight through
DIRECT: Mapping[str, str] = {
    "num_return_sequences": "num_return_sequences",
    "exclude_input_in_output": "exclude_input_in_output",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "return_log_probs": "return_log_probs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    "return_perf_metrics": "return_perf_metrics",
    "return_num_input_tokens": "return_num_input_tokens",
    "return_num_output_tokens": "return_num_output_tokens",
    "beam_width": "beam_width",
    "stream": "streaming",
    "prompt_embedding_table": "prompt_embedding_table",
    "prompt_vocab_size": "prompt_vocab_size",
    "lora_task_id": "lora_task_id",
    "lora_weights": "lora_weights",
    "lora_config": "lora_config",
    "guided_decoding_guide_type": "guided_decoding_guide_type",
    "guided_decoding_guide": "guided_decoding_guide",
}
#: client's name → input of ``preprocessing``
TO_PREPROCESSING: Mapping[str, str] = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
    "chat": "CHAT",
}
#: output of ``preprocessing`` → input of ``tensorrt_llm``
TO_ENGINE: Mapping[str, str] = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}


def typed(rows: Iterable[TensorRow], *, logits: str, weights: str, features: str = "FP16") -> list[TensorRow]:
    """The rows with the engine's types put in (``FP16``, ``BF16``, ``FP32``)."""
    types = {"logits": logits, "weights": weights, "features": features}
    return [replace(row, dtype=types.get(row.dtype, row.dtype)) for row in rows]
