"""A client's tensors as requests of the runtime: text as ``ensemble`` takes it, or tokens as ``tensorrt_llm`` does.

Policy: names and meanings are those of TensorRT-LLM's Triton backend
(https://github.com/NVIDIA/TensorRT-LLM/tree/v1.2.1/triton_backend). What a client sends is honoured or refused by
name. The likeliest token is taken unless ``top_k`` over 1, ``top_p`` or ``min_p`` asks for a choice, as there; one
departure: a ``temperature`` other than 1 (which clients always send) asks for a choice too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import needs_tokenizer
from runtime.frontend.names import refuse_contradictions, refuse_missing
from runtime.frontend.offered import refuse_not_offered
from runtime.frontend.reading import Rows, text, together
from runtime.request import Request
from runtime.sampling.params import GuidedDecoding, SamplingParams
from trtforge.ground.errors import ForgeError

Encode = Callable[[str], list[int]]

#: the ways in which a prompt may come; exactly one does
PROMPTS = ("text_input", "input_ids", "messages")
_FLOATS = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
#: a JSON object or array, which guide type ``json`` asks for
_ANY_JSON = '{"type": ["object", "array"]}'
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")
#: inputs that are read here, for the test that every declared input is read, refused or known to have no effect
READ = frozenset(
    {
        "text_input", "input_ids", "input_lengths", "max_tokens", "stream", "chat", "temperature", "top_k", "top_p",
        *_FLOATS, "min_tokens", "seed", "random_seed", "stop_words", "bad_words", "stop_words_list", "bad_words_list",
        "embedding_bias", "embedding_bias_words", "embedding_bias_weights", "end_id", "return_log_probs",
        "return_perf_metrics", "exclude_input_in_output", "num_return_sequences", "beam_width", "priority",
        "timeout_ms", "guided_decoding_guide_type", "guided_decoding_guide", "stop", "speculate",
        "num_draft_tokens", "messages", "cache_salt", "return_num_output_tokens", "stream_interval",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One prompt of a client's request.

    Attributes:
        echo: text before the answer, where the prompt is to be repeated.
        echo_tokens: tokens before the answer, likewise.
        tokens: the prompt came as tokens; the answer's end token is then left out of ``output_ids``.
        log_probs, metrics: which optional outputs are wanted.
        own_counts: each response counts its own tokens and not those so far, so that a stream's counts add up.
    """

    request: Request
    echo: str = ""
    echo_tokens: tuple[int, ...] = ()
    tokens: bool = False
    log_probs: bool = False
    metrics: bool = False
    own_counts: bool = False


@dataclass(frozen=True)
class Defaults:
    """What holds for a client that does not say.

    Attributes:
        exclude_input: the prompt stays out of a text answer.
        max_tokens: tokens of an answer; None: a request has to say.
        timeout: seconds from arrival to the deadline; None: none.
    """

    exclude_input: bool = True
    max_tokens: int | None = None
    timeout: float | None = None


def read(
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    eos_token_ids: tuple[int, ...] = (),
    encode: Encode | None = None,
    defaults: Defaults = Defaults(),
    triton_timeout: float | None = None,
) -> list[Asked]:
    """What a client asks for, one entry a row.

    Args:
        tensors: arrays by input name with the batch axis first; inputs that were not sent are left out.
        eos_token_ids: the model's end-of-sequence tokens, which an ``end_id`` of the client replaces.
        encode: tokens of a text without special tokens, for ``embedding_bias_words``.
        defaults: what holds for a client that does not say.
        triton_timeout: seconds of Triton's own ``timeout`` of the request; None: the client gave none.

    Raises:
        ForgeError: ``TF-RUN-101`` … ``109``, ``117``, ``118``, ``130``, ``131`` and the codes of SamplingParams.
    """
    rows = Rows(tensors)
    prompts = [name for name in PROMPTS if name in rows]
    refuse_missing(
        {
            *tensors,
            *(["text_input"] if prompts else []),
            *(["max_tokens"] if defaults.max_tokens is not None else []),
        }
    )
    if len(prompts) > 1:
        raise ForgeError(
            "TF-RUN-108",
            f"{' and '.join(prompts)} came together",
            why="a request has one prompt: a text, tokens or a chat",
            remedies=["send one of them"],
        )
    refuse_not_offered(rows)
    return [_row(rows, row, eos_token_ids, encode, defaults, triton_timeout) for row in range(rows.count)]


def _row(
    rows: Rows,
    row: int,
    eos: tuple[int, ...],
    encode: Encode | None,
    defaults: Defaults,
    triton_timeout: float | None,
) -> Asked:
    tokens = "input_ids" in rows
    stream, chat = rows.flag("stream", row), rows.flag("chat", row)
    contradicting = ("seed", "random_seed", "stream", "exclude_input_in_output")
    refuse_contradictions(
        {name: rows.one(name, row) for name in contradicting if name in rows} | {"chat": chat or "messages" in rows}
    )
    params = SamplingParams(**_sampling(rows, row, eos, encode, defaults))
    common: dict[str, Any] = {
        "params": params,
        "priority": int(rows.one("priority", row, 0)),
        "timeout": _timeout(rows, row, defaults, triton_timeout),
        "stream": stream,
        "stream_interval": _stream_interval(rows, row),
        "cache_salt": text("cache_salt", rows.one("cache_salt", row, "")),
        "speculate": _speculate(rows, row),
    }
    wants: dict[str, Any] = {
        "log_probs": rows.flag("return_log_probs", row),
        "metrics": rows.flag("return_perf_metrics", row),
        "own_counts": rows.flag("return_num_output_tokens", row),
    }
    if not tokens and "input_lengths" in rows:
        raise ForgeError(
            "TF-RUN-108",
            "input_lengths came without input_ids",
            why="it says how many of input_ids' tokens are the prompt",
            remedies=["leave input_lengths out", "send input_ids"],
        )
    if "messages" in rows:
        if chat:
            raise ForgeError(
                "TF-RUN-108",
                "chat came with messages",
                why="messages are a chat already; chat is for a text_input that becomes one user message",
                remedies=["leave chat out", "send text_input"],
            )
        return Asked(Request(messages=_messages(text("messages", rows.one("messages", row))), **common), **wants)
    # TensorRT-LLM repeats the prompt in whole answers only: a stream has nothing but new tokens.
    echo = not stream and not rows.flag("exclude_input_in_output", row, defaults.exclude_input and not tokens)
    if tokens:
        if chat:
            raise ForgeError(
                "TF-RUN-108",
                "chat came with input_ids",
                why="the chat template takes text",
                remedies=["send text_input", "leave chat out"],
            )
        prompt = _prompt_tokens(rows, row)
        request = Request(prompt_token_ids=prompt, **common)
        return Asked(request, echo_tokens=tuple(prompt) if echo else (), tokens=True, **wants)
    prompt_text = text("text_input", rows.one("text_input", row))
    if not prompt_text:
        raise _empty("text_input")
    if chat:
        return Asked(Request(messages=[{"role": "user", "content": prompt_text}], **common), **wants)
    return Asked(Request(prompt=prompt_text, **common), echo=prompt_text if echo else "", **wants)


def _timeout(rows: Rows, row: int, defaults: Defaults, triton_timeout: float | None) -> float | None:
    """Seconds from arrival to the deadline: the earlier one of ``timeout_ms`` and Triton's own ``timeout``."""
    given = [] if triton_timeout is None else [triton_timeout]
    if "timeout_ms" in rows:
        timeout = int(rows.one("timeout_ms", row)) / 1000.0
        if timeout <= 0:
            raise ForgeError(
                "TF-RUN-104",
                "the deadline has passed already",
                asked=f"timeout_ms: {rows.one('timeout_ms', row)}",
                remedies=["timeout_ms: 30000", "leave timeout_ms out"],
            )
        given.append(timeout)
    return min(given, default=defaults.timeout)


def _stream_interval(rows: Rows, row: int) -> int | None:
    """Tokens a streamed response; None: the server's choice."""
    if "stream_interval" not in rows:
        return None
    interval = int(rows.one("stream_interval", row))
    if interval < 1:
        raise ForgeError(
            "TF-RUN-131",
            f"stream_interval is {interval}; it must be at least 1",
            asked=f"stream_interval: {interval}",
            why="so many new tokens make a streamed response",
            remedies=["stream_interval: 1", "leave stream_interval out"],
        )
    return interval


def _messages(written: str) -> list[dict[str, Any]]:
    """A chat from its JSON; what the messages hold is the template's to judge (``TF-RUN-092``)."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise _no_chat(written, f"it is no JSON: {error}") from None
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise _no_chat(written, "it is no list of objects")
    return found


def _no_chat(written: str, why: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-130",
        "messages is no chat",
        asked=written[:100],
        why=why[:200],
        remedies=['messages: [{"role": "user", "content": "Hello"}], as one JSON text', "send text_input"],
    )


def _speculate(rows: Rows, row: int) -> bool:
    """Whether the engine may draft; ``num_draft_tokens`` 0 says no in TensorRT-LLM's words."""
    wanted = rows.flag("speculate", row, True)
    if "num_draft_tokens" not in rows:
        return wanted
    most = int(rows.one("num_draft_tokens", row))
    if most:
        raise ForgeError(
            "TF-RUN-107",
            "num_draft_tokens over 0 is not offered by this model",
            asked=f"num_draft_tokens: {most}",
            why="an engine that speculates chooses how far by itself, by what drafts cost and what they yield",
            remedies=["leave num_draft_tokens out", "num_draft_tokens: 0 or speculate: false, for no drafts at all"],
        )
    if wanted and "speculate" in rows:
        raise ForgeError(
            "TF-RUN-108",
            "speculate: true came with num_draft_tokens: 0",
            asked="speculate: true, num_draft_tokens: 0",
            why="one allows drafts and the other forbids them",
            remedies=["leave num_draft_tokens out", "speculate: false"],
        )
    return False


def _empty(name: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-105",
        f"{name} is empty",
        why="a model continues a text; there is nothing to continue",
        remedies=[f"put the prompt into {name}"],
    )


def _prompt_tokens(rows: Rows, row: int) -> list[int]:
    ids = rows.many("input_ids", row)
    if not len(ids):
        raise _empty("input_ids")
    length = int(rows.one("input_lengths", row, len(ids)))
    if not 0 < length <= len(ids):
        raise ForgeError(
            "TF-RUN-101",
            f"input_lengths says {length}, and input_ids has {len(ids)} tokens",
            asked=f"input_lengths: {length}",
            numbers={"input_lengths": length, "tokens": len(ids)},
            why="that many tokens of input_ids are the prompt",
            remedies=[f"input_lengths from 1 to {len(ids)}"],
        )
    return [int(token) for token in ids[:length]]


def _sampling(rows: Rows, row: int, eos: tuple[int, ...], encode: Encode | None, defaults: Defaults) -> dict[str, Any]:
    given: dict[str, Any] = {"max_tokens": int(rows.one("max_tokens", row, defaults.max_tokens))}
    given |= {name: float(rows.one(name, row)) for name in _FLOATS if name in rows}
    given |= _choice(rows, row)
    for name, inner in (("min_tokens", "min_tokens"), ("num_return_sequences", "n")):
        if name in rows:
            given[inner] = int(rows.one(name, row))
    for name in ("random_seed", "seed"):
        if name in rows:
            given["seed"] = int(rows.one(name, row))
    if rows.flag("return_log_probs", row):
        given["logprobs"] = 0
    given |= _end(rows, row, eos)
    for tensor, name in (("stop_words", "stop"), ("bad_words", "bad_words")):
        if tensor in rows:
            given[name] = tuple(rows.texts(tensor, row))
    for tensor, name in (("stop_words_list", "stop_token_sequences"), ("bad_words_list", "bad_token_sequences")):
        if tensor in rows:
            given[name] = _token_words(tensor, rows.tensors[tensor][row])
    bias = _bias(rows, row, encode)
    if bias:
        given["logit_bias"] = tuple(sorted(bias.items()))
    guide = _guide(rows, row)
    if guide is not None:
        given["guided"] = guide
    return given


def _choice(rows: Rows, row: int) -> dict[str, Any]:
    """temperature, top_k and top_p; a ``top_p`` of 0 is off, as TensorRT-LLM has it."""
    given: dict[str, Any] = {}
    if "top_k" in rows:
        given["top_k"] = int(rows.one("top_k", row))
    top_p = float(rows.one("top_p", row, 0.0))
    if top_p != 0:
        given["top_p"] = top_p
    narrowed = given.get("top_k", 0) > 1 or top_p != 0 or float(rows.one("min_p", row, 0.0)) > 0
    temperature = float(rows.one("temperature", row, 1.0))
    given["temperature"] = temperature if narrowed or temperature != 1 else 0.0
    return given


def _end(rows: Rows, row: int, eos: tuple[int, ...]) -> dict[str, Any]:
    """The client's own end token; -1 is none at all."""
    end_id = None if "end_id" not in rows else int(rows.one("end_id", row))
    if end_id is None or end_id in eos:
        return {}
    return {"ignore_eos": True, "stop_token_ids": () if end_id == -1 else (end_id,)}


def _token_words(name: str, pair: npt.NDArray[Any]) -> tuple[tuple[int, ...], ...]:
    """Words from [2, n]: row 0 their tokens one after the other, row 1 where each word ends, -1 beyond the last."""
    if pair.ndim != 2 or len(pair) != 2:
        raise ForgeError(
            "TF-RUN-101",
            f"{name} must have the shape [rows, 2, tokens]",
            asked=f"{name} of shape {[1, *pair.shape]}",
            why="one line holds the words' tokens, the other where each word ends",
            remedies=[f"leave {name} out", "stop_words and bad_words take texts"],
        )
    tokens, ends = pair[0].tolist(), [int(end) for end in pair[1] if end != -1]
    words, start = [], 0
    for end in ends:
        if not start < end <= len(tokens):
            raise ForgeError(
                "TF-RUN-101",
                f"{name} says that a word ends at {end}; it began at {start} of {len(tokens)} tokens",
                asked=f"{name}: {ends}",
                why="ends rise and stay within the tokens",
                remedies=["ends are running sums of the words' lengths, then -1"],
            )
        words.append(tuple(tokens[start:end]))
        start = end
    return tuple(words)


def _bias(rows: Rows, row: int, encode: Encode | None) -> dict[int, float]:
    """What is added to tokens' logits: each token of a word gets the word's weight."""
    bias: dict[int, float] = {}
    vector = rows.many("embedding_bias", row)
    for token in np.flatnonzero(vector):
        bias[int(token)] = float(vector[token])
    names = {name: name in rows for name in ("embedding_bias_words", "embedding_bias_weights")}
    if not together(names):
        return bias
    words = [text("embedding_bias_words", word) for word in rows.many("embedding_bias_words", row)]
    weights = [float(weight) for weight in rows.many("embedding_bias_weights", row)]
    if len(words) != len(weights):
        raise ForgeError(
            "TF-RUN-108",
            f"{len(words)} embedding_bias_words and {len(weights)} embedding_bias_weights",
            numbers={"words": len(words), "weights": len(weights)},
            why="each word has its own weight",
            remedies=["send as many weights as words"],
        )
    if any(words) and encode is None:
        raise needs_tokenizer("embedding_bias_words")
    for word, weight in zip(words, weights, strict=True):
        for token in encode(word) if encode is not None and word else ():
            bias[token] = bias.get(token, 0.0) + weight
    return bias


def _guide(rows: Rows, row: int) -> GuidedDecoding | None:
    """The grammar that an answer is held to."""
    kind = text("guided_decoding_guide_type", rows.one("guided_decoding_guide_type", row, ""))
    guide = text("guided_decoding_guide", rows.one("guided_decoding_guide", row, ""))
    if kind == "json":
        if guide:
            raise ForgeError(
                "TF-RUN-108",
                "guided_decoding_guide came with guided_decoding_guide_type json",
                asked=f"guided_decoding_guide: {guide[:100]}",
                why="json asks for any JSON object or array, and takes no guide",
                remedies=["guided_decoding_guide_type: json_schema", "leave guided_decoding_guide out"],
            )
        return GuidedDecoding(json_schema=_ANY_JSON)
    if not together({"guided_decoding_guide_type": bool(kind), "guided_decoding_guide": bool(guide)}):
        return None
    if kind == "json_schema":
        return GuidedDecoding(json_schema=guide)
    if kind == "regex":
        return GuidedDecoding(regex=guide)
    if kind == "ebnf_grammar":
        return GuidedDecoding(grammar=guide)
    raise ForgeError(
        "TF-RUN-109",
        f"guided_decoding_guide_type {kind!r} is not known",
        asked=kind[:100],
        why="the guide could not be read",
        remedies=[f"one of {', '.join(GUIDE_TYPES)}"],
    )
