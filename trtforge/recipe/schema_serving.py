"""The recipe's ``serving``: what trtforge's own runtime does with the requests that it is sent."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from trtforge.ground.section import PositiveInt, Section
from trtforge.ground.units import Seconds


class Serving(Section):
    """Requests on the native layout: the queue, limits of answers, streams, the prefix cache. No part of the engine."""

    max_waiting: PositiveInt = Field(4096, description="Requests that may wait; more are refused (TF-RUN-056)")
    queue_timeout: Seconds | None = Field(
        None,
        description="Longest wait for the first step, for example 10s; then the request is refused (TF-RUN-132). "
        "null: any time",
    )
    aging: Seconds | None = Field(
        None, description="Waiting time that is worth one level of a request's priority; null: 10s"
    )
    default_max_tokens: PositiveInt | None = Field(
        None, description="Tokens of an answer whose request does not say; null: such a request is refused (TF-RUN-117)"
    )
    max_output_tokens: PositiveInt | None = Field(
        None,
        description="Most tokens that a request may ask for; more is refused (TF-RUN-133). null: as many as fit",
    )
    default_timeout: Seconds | None = Field(
        None, description="Time from arrival after which an answer ends with what it has, where a request does not say"
    )
    max_prefill_tokens: PositiveInt | None = Field(
        None,
        description="Most prompt tokens in a step that also decodes: fewer smooth streams and delay first tokens. "
        "null: the whole step",
    )
    stream_interval: PositiveInt = Field(
        1, description="Tokens that make a streamed response, after the first, where a request does not say"
    )
    prefix_cache: bool = Field(True, description="Reuse the KV blocks of equal prefixes")
    salt: str = Field("", description="Mixed into the names of cached prefixes, before a request's own cache_salt")
    coalesce: bool = Field(
        False, description="A greedy request equal to one that is being answered gets that one's answer, computed once"
    )
    cleanse: bool = Field(
        False, description="Take invisible and control characters out of prompts; answers say how many"
    )
    request_log: str | None = Field(
        None,
        description="A line of JSON a request (id, tokens, times, how it ended, code; no text), to stderr or to the "
        "file of this absolute path. null: none",
    )

    @field_validator("queue_timeout", "aging", "default_timeout")
    @classmethod
    def _some_time(cls, value: float | None) -> float | None:
        if value is not None and not 0.001 <= value <= 10**9:
            raise ValueError("a time from 1ms on")
        return value

    @field_validator("request_log")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is not None and value != "stderr" and not (value.startswith("/") and value.isprintable()):
            raise ValueError("stderr, or an absolute path")
        return value

    @field_validator("salt")
    @classmethod
    def _text(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("a salt is printable text on one line")
        return value

    @model_validator(mode="after")
    def _default_within_limit(self) -> Serving:
        default, most = self.default_max_tokens, self.max_output_tokens
        if default is not None and most is not None and default > most:
            raise ValueError(f"default_max_tokens {default} is over max_output_tokens {most}")
        return self
