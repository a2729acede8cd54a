"""A request's prompt as tokens: exactly one of text, tokens and chat, refused early when it cannot fit.

Policy: what a client sends costs the server no more than the engine could have served. A text is measured before
it is tokenized (see :mod:`runtime.token_bound`), and a text that may fit by its bytes is tokenized in growing
parts, so that one with too many tokens is refused at the engine's limit and not at its own end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime import errors
from runtime.executors.base import ExecutorLimits
from runtime.request import Request

if TYPE_CHECKING:
    from runtime.tokenizer import EngineTokenizer

#: Characters of text per token of the limit up to which a text is tokenized whole.
WHOLE_CHARACTERS = 8


def check_request(request: object) -> Request:
    """A request whose fields have the types that the engine relies on.

    Raises:
        ForgeError: ``TF-RUN-050``, ``TF-RUN-064``, ``TF-RUN-066`` or ``TF-RUN-067``.
    """
    from runtime.sampling.params import SamplingParams

    if not isinstance(request, Request):
        raise errors.bad_request(errors.short_repr(request), "it is no Request")
    if not isinstance(request.params, SamplingParams):
        raise errors.bad_params(request.params)
    if request.request_id is not None and not isinstance(request.request_id, str):
        raise errors.bad_request_field("request_id", request.request_id, "text")
    if not isinstance(request.stream, bool):
        raise errors.bad_request_field("stream", request.stream, "true or false")
    interval = request.stream_interval
    if interval is not None and (not isinstance(interval, int) or isinstance(interval, bool) or interval < 1):
        raise errors.bad_request_field("stream_interval", interval, "a whole number over 0")
    if not isinstance(request.cache_salt, str) or not is_unicode(request.cache_salt):
        raise errors.bad_request_field("cache_salt", request.cache_salt, "text")
    priority, timeout = request.priority, request.timeout
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
        raise errors.bad_schedule_value("priority", priority, "a whole number of at most 31 bits")
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 < timeout < 2**53):
        raise errors.bad_schedule_value("timeout", timeout, "a number of seconds over 0")
    return request


def is_unicode(text: str) -> bool:
    """Whether a Python text can be written at all; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def prompt_tokens(
    request: Request, tokenizer: EngineTokenizer | None, limits: ExecutorLimits, vocab_size: int
) -> npt.NDArray[np.int64]:
    """Tokens of a request's prompt, int64 [S]; S may be over the limits only where no early bound is known.

    Raises:
        ForgeError: ``TF-RUN-050``, ``051``, ``054`` or ``063``; what rendering a chat raises.
    """
    given = [n for n in ("prompt", "prompt_token_ids", "messages") if getattr(request, n) is not None]
    if len(given) != 1:
        raise errors.bad_request(", ".join(given) or "nothing", f"{len(given)} prompts were given, not one")
    if request.prompt_token_ids is not None:
        return check_tokens(request.prompt_token_ids, vocab_size)
    if tokenizer is None:
        raise errors.needs_tokenizer(given[0])
    chat = request.prompt is None
    text = tokenizer.render_chat(request.messages) if request.messages is not None else request.prompt
    if not isinstance(text, str):
        raise errors.bad_request(errors.short_repr(text), "a prompt is text")
    if not is_unicode(text):
        raise errors.bad_request(errors.short_repr(text), "a prompt is Unicode text; this one has a lone surrogate")
    refuse_hopeless(text, tokenizer, limits)
    # A rendered chat gets no further special tokens: the template wrote them.
    return check_tokens(tokenizer.encode(text, add_special_tokens=not chat), vocab_size)


def refuse_hopeless(text: str, tokenizer: EngineTokenizer, limits: ExecutorLimits) -> None:
    """Refuse a text that certainly has more tokens than the engine takes; never one that might fit.

    Raises:
        ForgeError: ``TF-RUN-051`` with the lower bound.
    """
    limit, name = min((limits.max_input_len, "max_input_len"), (limits.max_seq_len - 1, "max_seq_len"))
    bound = tokenizer.bound
    if bound is None or len(text) <= limit:
        return
    size = len(text.encode())
    least = bound.least_tokens(text)
    if least > limit:
        raise errors.prompt_too_large(size, least, limit, name, bound.longest)
    start, counted, part = 0, 0, WHOLE_CHARACTERS * limit
    while len(text) - start > part:
        end = bound.cut(text, start + part // 2)
        if not end:
            return
        # Tokens part at both ends, so the parts' counts add up to the whole's.
        counted += len(tokenizer.encode(text[start:end], add_special_tokens=False))
        if counted > limit:
            raise errors.prompt_too_large(size, counted, limit, name, bound.longest)
        start = end


def check_tokens(token_ids: Iterable[int], vocab_size: int) -> npt.NDArray[np.int64]:
    """Token ids as int64 [S].

    Raises:
        ForgeError: ``TF-RUN-050`` for what is no list of whole numbers, ``TF-RUN-054`` for one that V excludes.
    """
    try:
        tokens = np.asarray(token_ids if isinstance(token_ids, np.ndarray) else list(token_ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.bad_request(errors.short_repr(token_ids), f"token ids are whole numbers ({error})") from None
    if tokens.ndim != 1 or len(tokens) == 0:
        raise errors.bad_request(f"shape {tokens.shape}", "the prompt has no tokens")
    if tokens.dtype.kind not in "iu":
        raise errors.bad_request(errors.short_repr(token_ids), "token ids are whole numbers")
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise errors.token_out_of_range(int(outside[0]), vocab_size)
    return tokens.astype(np.int64)
