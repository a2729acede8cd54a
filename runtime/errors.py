"""Refusals of the runtime (``TF-RUN-050`` … ``TF-RUN-069``), worded once."""

from __future__ import annotations

import reprlib
from typing import Any

from trtforge.ground.errors import ExitCode, ForgeError


def short_repr(value: object, characters: int = 200) -> str:
    """``repr`` of anything a caller may give, cut to a length that a message can carry; never raises."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"  # Python refuses to print the largest ones
    if isinstance(value, (str, int, float, type(None))):
        text = repr(value)
    else:
        try:
            text = reprlib.repr(value)
        except Exception:
            text = f"an object of type {type(value).__name__}"
    return text if len(text) <= characters else text[: characters - 1] + "…"


def bad_request(asked: str, why: str) -> ForgeError:
    """A request that is no request: no prompt, two prompts, a wrong type."""
    return ForgeError(
        "TF-RUN-050",
        "the request has no usable prompt",
        asked=asked,
        why=why,
        remedies=["give exactly one of prompt (text), prompt_token_ids, messages"],
    )


def prompt_too_long(tokens: int, limit: int, name: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-051",
        f"the prompt has {tokens} tokens; this engine takes at most {limit}",
        asked=f"a prompt of {tokens} tokens",
        numbers={"prompt_tokens": tokens, name: limit},
        why=f"{name} is fixed when the engine is built; a longer prompt could never be scheduled",
        remedies=[
            f"shorten the prompt by at least {tokens - limit} tokens",
            f"rebuild the engine with build.limits.{name} raised",
        ],
    )


def prompt_too_large(size: int, least: int, limit: int, name: str, longest: int) -> ForgeError:
    """A prompt over the engine's limit by its size alone, refused before it is tokenized."""
    return ForgeError(
        "TF-RUN-051",
        f"the prompt has {size} bytes, which are at least {least} tokens; this engine takes at most {limit}",
        asked=f"a prompt of {size} bytes",
        numbers={"prompt_bytes": size, "prompt_tokens_at_least": least, name: limit, "longest_token_bytes": longest},
        why="the count is a lower bound, from the longest entries of the vocabulary or from the prompt's beginning; "
        f"{name} is fixed when the engine is built",
        remedies=[
            f"shorten the prompt to {limit} tokens",
            f"rebuild the engine with build.limits.{name} raised",
        ],
    )


def too_few_blocks(tokens: int, needed: int, available: int, block_size: int) -> ForgeError:
    """A request that the whole KV pool could not hold."""
    return ForgeError(
        "TF-RUN-052",
        f"the request can grow to {tokens} tokens, which need {needed} KV blocks; the pool has {available}",
        asked=f"{tokens} tokens of context",
        numbers={"tokens": tokens, "blocks_needed": needed, "num_blocks": available, "block_size": block_size},
        why="even alone in the engine the request would run out of KV blocks",
        remedies=[
            f"ask for at most {available * block_size} tokens of prompt and max_tokens together",
            "rebuild the engine with a larger build.kv_cache.memory",
        ],
    )


def duplicate_id(request_id: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-053",
        f"request id {request_id!r} is in use",
        asked=request_id,
        why="outputs and cancellations are addressed by id; two live requests must not share one",
        remedies=["give every live request its own id", "leave request_id out: the engine numbers requests"],
    )


def token_out_of_range(token: int, vocab_size: int, name: str = "the prompt") -> ForgeError:
    """A token id that the model does not have, in the prompt or in a parameter."""
    return ForgeError(
        "TF-RUN-054",
        f"token id {token} of {name} is outside the vocabulary of {vocab_size}",
        asked=str(token),
        numbers={"token": token, "vocab_size": vocab_size},
        why="the model has no embedding for it; it often means that another model's tokenizer was used",
        remedies=[f"give ids from 0 to {vocab_size - 1}", "tokenize with the engine's own tokenizer"],
    )


def too_many_samples(n: int, limit: int) -> ForgeError:
    return ForgeError(
        "TF-RUN-055",
        f"n is {n}; this engine runs at most {limit} sequences at once",
        asked=f"n={n}",
        numbers={"n": n, "max_running": limit},
        why="the samples of a request run side by side",
        remedies=[f"ask for at most {limit} samples", "send several requests"],
    )


def queue_full(waiting: int, limit: int) -> ForgeError:
    return ForgeError(
        "TF-RUN-056",
        f"{waiting} requests are waiting; the queue holds {limit}",
        numbers={"waiting": waiting, "max_waiting": limit},
        why="accepting more would only lengthen everybody's wait",
        remedies=["retry later, with a growing delay", "raise max_waiting", "add a replica"],
        exit_code=ExitCode.GATE_FAILED,
    )


def queued_too_long(waited: float, limit: float) -> ForgeError:
    """What a request is told that waited ``limit`` seconds for its first step."""
    return ForgeError(
        "TF-RUN-132",
        f"the request waited {waited:.1f} s for its turn; the queue's time-out is {limit:g} s",
        numbers={"waited_s": round(waited, 3), "queue_timeout_s": limit},
        why="an answer that comes too late serves nobody, and its work would delay the others",
        remedies=["retry later, with a growing delay", "raise serving.queue_timeout", "add a replica"],
        exit_code=ExitCode.GATE_FAILED,
    )


def too_many_tokens(asked: int, limit: int) -> ForgeError:
    return ForgeError(
        "TF-RUN-133",
        f"max_tokens is {asked}; this server gives at most {limit}",
        asked=f"max_tokens={asked}",
        numbers={"max_tokens": asked, "max_output_tokens": limit},
        why="one long answer holds a row and KV blocks that others wait for",
        remedies=[f"ask for at most {limit} tokens", "raise serving.max_output_tokens"],
    )


def shutting_down() -> ForgeError:
    return ForgeError(
        "TF-RUN-057",
        "the engine is shutting down and takes no more requests",
        why="a drain lets running requests end and refuses new ones",
        remedies=["send the request to another replica", "start the engine again"],
        exit_code=ExitCode.GATE_FAILED,
    )


def drain_ended() -> ForgeError:
    """What a live request is told when a drain's time is over."""
    return ForgeError(
        "TF-RUN-057",
        "the engine is shutting down: its drain ended before this answer was complete",
        why="a drain gives running and waiting requests a limited time",
        remedies=["send the request to another replica", "a longer drain (trtforge serve --drain SECONDS)"],
        exit_code=ExitCode.GATE_FAILED,
    )


def engine_dead(cause: str, failures: int) -> ForgeError:
    return ForgeError(
        "TF-RUN-058",
        f"the engine is dead: {cause}",
        numbers={"consecutive_failures": failures},
        why="several steps in a row failed; the next one would too",
        remedies=["restart the process", "see the log for the first failure"],
        exit_code=ExitCode.INTERNAL,
    )


def step_failed(cause: BaseException) -> ForgeError:
    """A step raised: every live request ends with this."""
    return ForgeError(
        "TF-RUN-059",
        f"the engine step failed: {type(cause).__name__}: {cause}",
        why="the keys and values of the step's requests can no longer be trusted, so all live requests were ended",
        remedies=["send the request again", "see the log for the traceback; report it if it repeats"],
        exit_code=ExitCode.INTERNAL,
    )


def cannot_add(cause: BaseException) -> ForgeError:
    """Something unforeseen while an accepted request joins the others; it ends alone."""
    return ForgeError(
        "TF-RUN-069",
        f"the request could not join the batch: {type(cause).__name__}: {cause}",
        why="what the request asks for could not be set up; other requests go on",
        remedies=["ask for less (samples, words, tokens)", "see the log for the traceback; report it if it repeats"],
        exit_code=ExitCode.INTERNAL,
    )


def not_finite() -> ForgeError:
    """A row of logits with NaN or infinity, or with every token banned."""
    return ForgeError(
        "TF-RUN-060",
        "no token could be chosen: the logits are not finite, or bans leave no token",
        why="NaN logits mean broken weights, scales or a kernel; bans (bad words, grammar) can exclude every token",
        remedies=["check the engine against its checkpoint (parity)", "loosen bad_words or the grammar"],
        exit_code=ExitCode.INTERNAL,
    )


def grammar_spent(reason: str) -> ForgeError:
    """A grammar that passed the library's limits in the middle of its answer."""
    return ForgeError(
        "TF-RUN-122",
        f"the grammar became too large while the answer was written: {reason}",
        why="each token unfolds the grammar further, up to a limit that keeps one request from slowing all others",
        remedies=[
            "smaller counts of repetition, such as {0,100}",
            "repeat by * or + within one expression instead of by a rule that calls itself",
        ],
    )


def cornered() -> ForgeError:
    """A grammar all of whose next tokens are banned."""
    return ForgeError(
        "TF-RUN-136",
        "the grammar leaves no token that the request's bans allow",
        why="a text that is complete must end, and min_tokens forbids it; or bad_words forbid all that may follow",
        remedies=["a smaller min_tokens, or none", "fewer bad_words", "a grammar that allows longer texts"],
    )


def bad_limits(message: str, numbers: dict[str, Any]) -> ForgeError:
    return ForgeError(
        "TF-RUN-061",
        message,
        numbers=numbers,
        why="the scheduler could not run a single request under these limits",
        remedies=["rebuild the engine with consistent build.limits and build.kv_cache"],
    )


def min_tokens_impossible(min_tokens: int, room: int) -> ForgeError:
    return ForgeError(
        "TF-RUN-062",
        f"min_tokens is {min_tokens}; after this prompt the context has room for {room}",
        asked=f"min_tokens={min_tokens}",
        numbers={"min_tokens": min_tokens, "room": room},
        why="the request would hit the context limit before it may end",
        remedies=[f"ask for min_tokens up to {room}", "shorten the prompt"],
    )


def needs_tokenizer(what: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-063",
        f"{what} needs a tokenizer, and this engine was made without one",
        asked=what,
        why="texts are compared with decoded output",
        remedies=["load the engine with its tokenizer", "use token ids instead of texts"],
    )


def bad_schedule_value(name: str, value: object, allowed: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-064",
        f"{name} is {short_repr(value)}; it must be {allowed}",
        asked=f"{name}={short_repr(value)}",
        why="the scheduler cannot order or time a request by it",
        remedies=[f"give {name} {allowed}", f"leave {name} out"],
    )


def bad_params(params: object) -> ForgeError:
    return ForgeError(
        "TF-RUN-066",
        f"the parameters are {short_repr(params)}; they must be SamplingParams",
        asked=short_repr(params),
        why="how to generate cannot be read from it",
        remedies=["give SamplingParams(…), or a mapping of its fields to Engine.generate"],
    )


def bad_request_field(name: str, value: object, allowed: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-067",
        f"{name} is {short_repr(value)}; it must be {allowed}",
        asked=f"{name}={short_repr(value)}",
        why="requests are told apart, their cached prefixes kept apart and their streams cut by it",
        remedies=[f"give {name} {allowed}", f"leave {name} out"],
    )


def check_resource(name: str, value: object, most: int) -> None:
    """Refuse a number of threads or blocks that is none; None passes.

    Raises:
        ForgeError: ``TF-RUN-068``.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is None or (whole and 1 <= value <= most):  # type: ignore[operator]
        return
    raise ForgeError(
        "TF-RUN-068",
        f"{name} is {short_repr(value)}; it must be a whole number from 1 to {most}",
        asked=f"{name}={short_repr(value)}",
        why="the engine reserves that many when it is loaded",
        remedies=[f"give {name} from 1 to {most}", f"leave {name} out for its default"],
    )


def bad_draft_len(length: object, most: int) -> ForgeError:
    """A fixed draft length that the engine cannot draft; ``most`` 0: it drafts nothing."""
    why = (
        f"its longest draft was fixed at {most} tokens when it was built" if most else "it was built without a drafter"
    )
    remedies = ["leave fixed_draft_len out"]
    remedies.insert(0, f"give 1 to {most}" if most else "build the engine with a speculation section in its recipe")
    return ForgeError(
        "TF-RUN-123",
        f"the engine cannot draft {short_repr(length)} tokens",
        asked=f"fixed_draft_len={short_repr(length)}",
        numbers={"max_draft_len": most},
        why=why,
        remedies=remedies,
    )
