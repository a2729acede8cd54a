"""A request's parameters as a job: OpenAI's meanings and defaults, and what is refused by name.

Policy: OpenAI's defaults hold (temperature 1, which draws a token), but for the answer's length: without one an answer
has what the context leaves, up to the front's own bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.openai_front.deployment import Deployment
from launcher.openai_front.errors import ApiError, bad_value, not_offered
from launcher.openai_front.job import Guide, Job
from launcher.openai_front.schema import MOST_ANSWERS, ChatRequest, CompletionRequest, Generation

#: stop texts at most, as OpenAI has it
MOST_STOPS = 4
MOST_BIASES = 1024
#: more than any vocabulary has: a bias may go to the server as a value for each token up to the last one
_TOKENS = 2**21
#: variables of a template that are not the client's: what a chat is made of, and the tokenizer's own
_TEMPLATE_S = frozenset({"messages", "tools", "documents", "add_generation_prompt", "template", "self"})
_NEUTRAL: tuple[Any, ...] = (None, [], {}, "", False)
_STORED = "nothing that clients send is kept here"
_ONE_MODEL = "there is one model here, and no search, sound or moderation beside it"
#: parameter of a chat → why it cannot be honoured, and values that ask for nothing
_REFUSED: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "audio": ("the model answers in text", ()),
    "function_call": ("functions became tools", ("none",)),
    "functions": ("functions became tools; send tools", ()),
    "metadata": (_STORED, ()),
    "modalities": ("the model answers in text", (["text"],)),
    "moderation": (_ONE_MODEL, ()),
    "prediction": ("the engine drafts by itself, or not at all", ()),
    "prompt_cache_key": ("blocks of equal prompts are shared without a key; cache_salt keeps them apart", ()),
    "prompt_cache_options": ("blocks are kept by last use", ()),
    "prompt_cache_retention": ("blocks are kept by last use", ()),
    "reasoning_effort": ("how a model reasons is its template's: chat_template_kwargs", ()),
    "service_tier": ("there is one tier here", ("auto", "default")),
    "store": (_STORED, ()),
    "verbosity": ("say it in the prompt", ()),
    "web_search_options": (_ONE_MODEL, ()),
}


def refuse_not_served(request: ChatRequest) -> None:
    """Refuse OpenAI's parameters that nothing here can honour.

    Raises:
        ApiError: ``TF-OAI-002`` naming the first.
    """
    for name, (why, neutral) in _REFUSED.items():
        value = getattr(request, name)
        if value not in _NEUTRAL and value not in neutral:
            raise not_offered(name, why)


def template_variables(request: ChatRequest) -> dict[str, Any]:
    """Further variables of the chat template; raises ``TF-OAI-003`` for those that are not the client's to set."""
    found = request.chat_template_kwargs or {}
    for name in found:
        if name in _TEMPLATE_S or name.endswith("_token"):
            raise bad_value("chat_template_kwargs", f"{name[:40]} is set by the chat or the tokenizer")
    return found


def stream_usage(request: Generation) -> bool:
    """Whether a stream ends with its usage; raises for options without a stream, and for obfuscation."""
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise bad_value("stream_options", "they are a stream's, and stream is not true")
    if options.include_obfuscation:
        raise not_offered("stream_options.include_obfuscation", "pieces are sent as they are; use TLS in front")
    return options.include_usage


def job_of(
    request: Generation,
    deployment: Deployment,
    *,
    bound: int,
    timeout_ms: int | None = None,
    guide: Guide | None = None,
) -> Job:
    """The job of a request.

    Args:
        bound: tokens of an answer at most where the client does not say; a prompt may leave fewer.

    Raises:
        ApiError: ``TF-OAI-002``, ``TF-OAI-003``, ``TF-OAI-017``, ``TF-OAI-027``.
    """
    if request.stream and not deployment.decoupled:
        raise ApiError(
            400,
            "TF-OAI-027",
            "stream: this server's model gives whole answers only; write the repository with triton.decoupled: true, "
            "or leave stream out",
            param="stream",
        )
    if guide is not None and not deployment.takes("guide"):
        raise ApiError(
            400,
            "TF-OAI-017",
            "response_format and tool_choice hold the answer to a schema, and this server's model takes none; write "
            "the repository with build.trtllm.guided_decoding, or leave them out",
            param="response_format",
        )
    most = _length(request)
    return Job(
        max_tokens=bound if most is None else most,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=request.top_k,
        min_p=_sent(request, "min_p", deployment, neutral=0.0),
        presence_penalty=_sent(request, "presence_penalty", deployment, neutral=0.0),
        frequency_penalty=_sent(request, "frequency_penalty", deployment, neutral=0.0),
        repetition_penalty=_sent(request, "repetition_penalty", deployment, neutral=1.0),
        min_tokens=_sent(request, "min_tokens", deployment, neutral=0),
        seed=None if request.seed is None else request.seed % 2**64,
        n=request.n or 1,
        stop=_stops(request.stop),
        bias=_biases(request.logit_bias),
        guide=guide,
        log_probs=_log_probs(request, deployment),
        stream=bool(request.stream),
        timeout_ms=timeout_ms,
        priority=_sent(request, "priority", deployment, neutral=0),
        cache_salt=request.cache_salt,
    )


def _sent(request: Generation, name: str, deployment: Deployment, *, neutral: float) -> Any:
    """The value of a parameter; None for one that changes nothing."""
    value = getattr(request, name)
    if value is None or value == neutral:
        return None
    if not deployment.takes(name):
        raise not_offered(name, f"{deployment.model} of this server has no input for it")
    return value


def _length(request: Generation) -> int | None:
    newer = getattr(request, "max_completion_tokens", None)
    if newer is not None and request.max_tokens is not None and newer != request.max_tokens:
        raise bad_value("max_completion_tokens", f"it is {newer}, and max_tokens, its older name, {request.max_tokens}")
    return newer if newer is not None else request.max_tokens


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MOST_STOPS:
        raise bad_value("stop", f"{len(stops)} texts; at most {MOST_STOPS} are taken")
    if not all(stops):
        raise bad_value("stop", "a text is empty, and would end every answer before it began")
    return tuple(stops)


def _biases(bias: Mapping[str, float] | None) -> dict[int, float]:
    found: dict[int, float] = {}
    for token, value in (bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < _TOKENS):
            raise bad_value("logit_bias", f"{token[:40]!r} is no token id")
        if value:
            found[int(token)] = value
    if len(found) > MOST_BIASES:
        raise bad_value("logit_bias", f"{len(found)} tokens; at most {MOST_BIASES} are taken")
    return found


def _log_probs(request: Generation, deployment: Deployment) -> bool:
    if isinstance(request, ChatRequest):
        wanted, alternatives = bool(request.logprobs), request.top_logprobs or 0
        if request.top_logprobs is not None and not wanted:
            raise bad_value("top_logprobs", "it goes with logprobs: true")
        name = "top_logprobs"
    else:
        assert isinstance(request, CompletionRequest)
        wanted, alternatives = request.logprobs is not None, request.logprobs or 0
        name = "logprobs"
    if alternatives:
        raise not_offered(name, "the engine tells the chosen token's alone, not those of others", f"send {name}: 0")
    if wanted and not deployment.gives_log_probs:
        raise not_offered("logprobs", f"{deployment.model} of this server does not tell which tokens it chose")
    return wanted


def refuse_completion(request: CompletionRequest, answers: int, prompts: int = 1) -> None:
    """Refuse what completions of OpenAI have and this server has not, and more answers than one request may ask for.

    Args:
        answers: to each prompt.
    """
    if answers * prompts > MOST_ANSWERS:
        raise bad_value("n", f"{prompts} prompts with {answers} answers each; at most {MOST_ANSWERS} answers are made")
    if request.suffix:
        raise not_offered("suffix", "the model continues a text; it does not fill a gap")
    if request.best_of is not None and request.best_of != answers:
        raise not_offered("best_of", "all answers that are made are returned", "send n alone")
    if request.echo and request.logprobs is not None:
        raise not_offered("logprobs", "with echo it asks for those of the prompt, which the engine does not tell")
