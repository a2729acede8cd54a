"""What is asked of the model and what it says, in words of no layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        tokens: what the model reads.
        text: what becomes these tokens where the server tokenizes; empty where it does not.
        shown: the prompt as a client sees it, for ``echo``.
    """

    tokens: list[int]
    text: str = ""
    shown: str = ""


@dataclass(frozen=True)
class Guide:
    """What an answer is held to: a JSON schema, or a grammar in Lark."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    grammar: str = ""


@dataclass(frozen=True)
class Job:
    """How to generate; None and empty: the client did not say.

    Attributes:
        max_tokens: tokens of an answer at most.
        temperature: 0 takes the likeliest token; else a token is drawn.
        n: answers to each prompt.
        bias: token → what is added to its logit.
        log_probs: whether the log-probability of each token is wanted.
        timeout_ms: deadline from arrival.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    guide: Guide | None = None
    log_probs: bool = False
    stream: bool = False
    timeout_ms: int | None = None
    priority: int | None = None
    cache_salt: str | None = None


@dataclass(slots=True)
class Piece:
    """News of one of a request's answers.

    Attributes:
        index: which answer.
        text, token_ids, log_probs: what is new of it.
        finish: why it ended; empty until then.
        output_tokens: its tokens so far.
        cached_tokens: of the prompt, how many were found in the server's cache; None: the server does not say.
    """

    index: int = 0
    text: str = ""
    finish: str = ""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
