"""What is chosen when an engine is loaded and not when it is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Choices of the runtime that the engine directory does not fix.

    Attributes:
        max_waiting: requests that may wait; more are refused with ``TF-RUN-056``.
        prefix_cache: reuse the blocks of equal prefixes.
        aging_seconds: waiting time worth one level of priority.
        max_prefill_tokens: see :class:`~runtime.scheduler.SchedulerConfig`.
        salt: mixed into every prefix digest.
        speculation: draft as the engine was built to; False: decode token by token.
        fixed_draft_len: always draft that many tokens, whatever the engine's policy would choose.
        stream_interval: tokens that make an output of a stream, where a request does not say; the first one is told
            at once.
        max_output_tokens: most tokens that a request may ask for; more is refused with ``TF-RUN-133``. None: what the
            context has room for.
        queue_timeout: seconds that a request may wait before it runs; then it ends with ``TF-RUN-132``. None: any time.
        coalesce: a greedy request equal to one that is being answered gets that one's answer
            (:mod:`runtime.coalescing`).
        cleanse: take invisible and control characters out of the prompts' texts (:mod:`runtime.cleansing`).
    """

    max_waiting: int = 4096
    prefix_cache: bool = True
    aging_seconds: float = 10.0
    max_prefill_tokens: int | None = None
    salt: bytes = b""
    speculation: bool = True
    fixed_draft_len: int | None = None
    stream_interval: int = 1
    max_output_tokens: int | None = None
    queue_timeout: float | None = None
    coalesce: bool = False
    cleanse: bool = False
