"""From a request as a client made it to one that the engine can run: refused here, or never."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime import errors
from runtime.cleansing import cleansed
from runtime.executors.base import Executor, ExecutorLimits
from runtime.prompts import check_request, prompt_tokens
from runtime.request import Request, SampleOutput
from runtime.sample import Sample

if TYPE_CHECKING:
    from runtime.sampling.guided import GuidedState
    from runtime.tokenizer import EngineTokenizer


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A validated request with its tokens; made by :meth:`EngineCore.prepare`."""

    request: Request
    prompt: npt.NDArray[np.int64]
    capacity: int
    end_ids: frozenset[int]
    seed: int
    guided: GuidedState | None
    characters_removed: int = 0


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request between ``add`` and its final output."""

    id: str
    prepared: PreparedRequest
    arrival: float
    deadline: float | None
    samples: list[Sample] = field(default_factory=list)
    ended: list[SampleOutput] = field(default_factory=list)
    first_scheduled: float | None = None
    first_token: float | None = None
    error: dict[str, Any] | None = None
    blocks: int = 0
    stream_interval: int = 1


def prepare_request(
    request: Request,
    executor: Executor,
    tokenizer: EngineTokenizer | None,
    limits: ExecutorLimits,
    num_blocks: int,
    max_running: int,
    max_output_tokens: int | None = None,
    *,
    cleanses: bool = False,
) -> PreparedRequest:
    """Tokenize and validate.

    Args:
        num_blocks: of the pool. max_running: most sequences that run at once.
        max_output_tokens: most tokens that a request may ask for; None: no such limit.
        cleanses: take invisible and control characters out of the prompt's texts.

    Raises:
        ForgeError: ``TF-RUN-050`` … ``TF-RUN-067``, ``TF-RUN-133`` for a request that the engine cannot serve.
    """
    check_request(request)
    params, vocab_size = request.params, executor.vocab_size
    if max_output_tokens is not None and params.max_tokens > max_output_tokens:
        raise errors.too_many_tokens(params.max_tokens, max_output_tokens)
    removed = 0
    if cleanses:
        request, removed = cleansed(request)
    prompt = prompt_tokens(request, tokenizer, limits, vocab_size)
    length = len(prompt)
    if length > limits.max_input_len:
        raise errors.prompt_too_long(length, limits.max_input_len, "max_input_len")
    if length >= limits.max_seq_len:
        raise errors.prompt_too_long(length, limits.max_seq_len - 1, "max_seq_len")
    capacity = min(length + params.max_tokens, limits.max_seq_len)
    if params.min_tokens > capacity - length:
        raise errors.min_tokens_impossible(params.min_tokens, capacity - length)
    # The last token is never fed back, so it needs no slot.
    needed = -(-(capacity - 1) // executor.block_size)
    if needed > num_blocks:
        raise errors.too_few_blocks(capacity, needed, num_blocks, executor.block_size)
    if params.n > max_running:
        raise errors.too_many_samples(params.n, max_running)
    named: dict[str, Iterable[int]] = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": (token for token, _ in params.logit_bias),
        "bad_token_sequences": itertools.chain(*params.bad_token_sequences),
        "stop_token_sequences": itertools.chain(*params.stop_token_sequences),
    }
    for name, tokens in named.items():
        for token in tokens:
            if token >= vocab_size:
                raise errors.token_out_of_range(token, vocab_size, name)
    if tokenizer is None and (params.stop or params.bad_words or params.guided):
        raise errors.needs_tokenizer("stop, bad_words or guided")
    guided = None
    if params.guided is not None and tokenizer is not None:
        guided = tokenizer.guided(params.guided, vocab_size, executor.eos_token_ids)
    ends = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= frozenset(executor.eos_token_ids)
    seed = params.seed if params.seed is not None else int.from_bytes(os.urandom(8), "little")
    return PreparedRequest(request, prompt, capacity, ends, seed, guided, removed)
