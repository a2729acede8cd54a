"""What goes into the engine and what comes out of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.sampling.sampler import TokenLogprobs


class FinishReason(enum.StrEnum):
    """Why a sample ended; exactly one per sample."""

    STOP = "stop"  #: end of sequence, a stop token or a stop text
    LENGTH = "length"  #: max_tokens or the context limit
    TIMEOUT = "timeout"  #: the request's deadline passed
    CANCELLED = "cancelled"  #: the client withdrew it
    ERROR = "error"  #: a fault of the engine; see ``RequestOutput.error``


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request. Exactly one of ``prompt``, ``prompt_token_ids`` and ``messages`` is given.

    Attributes:
        request_id: unique among live requests; None: the engine numbers it.
        prompt: text, tokenized as the model's tokenizer config says (special tokens added).
        prompt_token_ids: tokens, used as they are.
        messages: a chat, rendered by the model's chat template with a generation prompt.
        params: how to generate.
        priority: higher is served earlier; ties in order of arrival.
        timeout: seconds from arrival until the request is ended with what it has; None: never.
        stream: outputs as tokens come; otherwise only the final one.
        stream_interval: tokens of a sample that make an output of a stream, the first one apart, which is told at
            once; None: the engine's choice.
        cache_salt: requests share cached prefixes only with requests of the same salt.
        speculate: whether an engine that speculates may draft for this request; the answer is the same either way.
    """

    request_id: str | None = None
    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    timeout: float | None = None
    stream: bool = True
    stream_interval: int | None = None
    cache_salt: str = ""
    speculate: bool = True


@dataclass(slots=True)
class SampleOutput:
    """News of one of a request's n samples; text, tokens and log-probabilities are those since the last output.

    Attributes:
        index: which sample, 0 … n-1.
        text: new text (stop texts trimmed, incomplete characters held back).
        token_ids: new tokens, the ending token included.
        logprobs: one entry per new token when asked for.
        cumulative_logprob: sum over all tokens so far; None when log-probabilities were not asked for.
        num_tokens: tokens so far.
        finish_reason: set once, with the sample's last output.
        stop_reason: the stop text or token id that ended it, if one did.
        num_draft_tokens: draft tokens verified for it so far.
        num_accepted_tokens: of these, how many became tokens of the sample.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    num_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Seconds on the engine's clock; None: did not happen."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    last_token: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """News of one request after a step; ``finished`` is true exactly once in its life.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: of these, how many the prefix cache supplied at first scheduling.
        max_tokens: tokens that a sample may have: what was asked for, or fewer where the context ends sooner.
        prompt_characters_removed: characters that cleansing took out of the prompt's texts.
        num_blocks: KV blocks that the samples of this output hold, those that they share counted once.
        error: the error (``ForgeError.to_json`` shape) when a sample finished with ``error``.
    """

    request_id: str
    samples: list[SampleOutput]
    finished: bool
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    times: RequestTimes | None = None
    error: dict[str, Any] | None = None
    max_tokens: int = 0
    num_blocks: int = 0
    prompt_characters_removed: int = 0

    @property
    def text(self) -> str:
        """New text of the first sample in this output."""
        return self.samples[0].text if self.samples else ""

    @property
    def token_ids(self) -> list[int]:
        """New tokens of the first sample in this output."""
        return self.samples[0].token_ids if self.samples else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first sample in this output ended, if it did."""
        return self.samples[0].finish_reason if self.samples else None


@dataclass(slots=True)
class Completion:
    """One finished sample, whole."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(slots=True)
class GenerationResult:
    """All of a request's outputs joined; feed them in order to :meth:`add`."""

    request_id: str = ""
    completions: list[Completion] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    times: RequestTimes | None = None
    error: dict[str, Any] | None = None
    finished: bool = False

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.completions[0].text if self.completions else ""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first sample."""
        return self.completions[0].token_ids if self.completions else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first sample ended."""
        return self.completions[0].finish_reason if self.completions else None

    def add(self, output: RequestOutput) -> GenerationResult:
        """Append one output; returns self."""
        self.request_id = output.request_id
        self.num_prompt_tokens, self.num_cached_tokens = output.num_prompt_tokens, output.num_cached_tokens
        self.times, self.finished = output.times, output.finished
        self.error = output.error or self.error
        for sample in output.samples:
            while len(self.completions) <= sample.index:
                self.completions.append(Completion(len(self.completions)))
            completion = self.completions[sample.index]
            completion.text += sample.text
            completion.token_ids.extend(sample.token_ids)
            completion.logprobs.extend(sample.logprobs or ())
            completion.cumulative_logprob = sample.cumulative_logprob
            completion.num_draft_tokens, completion.num_accepted_tokens = (
                sample.num_draft_tokens,
                sample.num_accepted_tokens,
            )
            if sample.finish_reason is not None:
                completion.finish_reason, completion.stop_reason = sample.finish_reason, sample.stop_reason
        return self
