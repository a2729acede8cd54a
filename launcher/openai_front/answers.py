"""All answers to all prompts of a client's request: one request of Triton's each, or several side by side.

Answers are numbered through: the i-th answer to the p-th prompt is ``p * n + i``, as OpenAI numbers choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from launcher.openai_front.backend import Triton
from launcher.openai_front.deployment import Deployment
from launcher.openai_front.job import Job, Piece, Prompt

#: pieces that wait for a client at most, before their requests wait too
WAITING = 256


@dataclass
class Usage:
    """Tokens of a client's request; of every prompt once, of every answer as the engine counts them."""

    prompt: int = 0
    cached: dict[int, int] = field(default_factory=dict)
    output: dict[int, int] = field(default_factory=dict)

    def add(self, piece: Piece, prompt: int) -> None:
        if piece.output_tokens is not None:
            self.output[piece.index] = piece.output_tokens
        if piece.cached_tokens is not None:
            self.cached[prompt] = piece.cached_tokens

    @property
    def completion(self) -> int:
        return sum(self.output.values())

    def to_json(self) -> dict[str, object]:
        """OpenAI's ``usage``; cached tokens where the server tells them."""
        found: dict[str, object] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }
        if self.cached:
            found["prompt_tokens_details"] = {"cached_tokens": sum(self.cached.values())}
        return found


@dataclass(frozen=True)
class _Part:
    """One of Triton's requests: its prompt, and the number of its first answer."""

    prompt: int
    first: int
    job: Job


def parts_of(job: Job, prompts: Sequence[Prompt], deployment: Deployment) -> list[_Part]:
    """A client's request as requests of Triton: several answers within one where the model makes them."""
    if not deployment.names.draws_seed and job.seed is None:
        job = replace(job, seed=secrets.randbits(63))  # else the engine would begin every answer alike
    together = job.n == 1 or (deployment.takes("n") and deployment.decoupled)
    found = []
    for number, prompt in enumerate(prompts):
        # not every layout cuts what the context has no room for
        most = min(job.max_tokens, deployment.max_seq_len - len(prompt.tokens))
        for answer in range(1 if together else job.n):
            first = number * job.n + answer
            own = _seeded(job, number if together else first)
            found.append(_Part(number, first, replace(own, max_tokens=most, n=job.n if together else 1)))
    return found


def _seeded(job: Job, number: int) -> Job:
    """The job of one part: a seed of its own, else equal prompts of one request would get equal answers."""
    return job if job.seed is None or not number else replace(job, seed=(job.seed + number) % 2**64)


class Answers:
    """The pieces of a client's request, and what they came to.

    Args:
        request_id: of Triton's requests; several are numbered behind it.
        bias_words: see :meth:`Triton.generate`.
    """

    def __init__(
        self, triton: Triton, job: Job, prompts: Sequence[Prompt], request_id: str, bias_words: Mapping[str, float]
    ) -> None:
        self.usage = Usage(prompt=sum(len(prompt.tokens) for prompt in prompts))
        self._triton = triton
        self._prompts = prompts
        self._words = bias_words
        parts = parts_of(job, prompts, triton.deployment)
        suffixes = [""] if len(parts) == 1 else [f"-{number}" for number in range(len(parts))]
        self._parts = [(part, f"{request_id}{suffix}") for part, suffix in zip(parts, suffixes, strict=True)]

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """The pieces as they come; closing the iterator withdraws what still runs."""
        source = self._one(*self._parts[0]) if len(self._parts) == 1 else self._several()
        async with contextlib.aclosing(source):
            async for piece in source:
                yield piece

    async def _one(self, part: _Part, request_id: str) -> AsyncGenerator[Piece, None]:
        pieces = self._triton.generate(part.job, self._prompts[part.prompt], request_id, self._words)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                piece.index += part.first
                self.usage.add(piece, part.prompt)
                yield piece

    async def _several(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all parts as they come; the fault of one ends them all."""
        queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue(WAITING)

        async def run(part: _Part, request_id: str) -> None:
            last: BaseException | None = None
            try:
                async for piece in self._one(part, request_id):
                    await queue.put(piece)
            except Exception as error:
                last = error
            await queue.put(last)

        tasks = [asyncio.create_task(run(part, name)) for part, name in self._parts]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
