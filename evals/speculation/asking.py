"""What the measures of speculation ask an engine for, and an :class:`~runtime.offline.Engine` that answers."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runtime.sampling.params import SamplingParams
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from runtime.offline import Engine


@dataclass(frozen=True, slots=True)
class Round:
    """One step of one answer behind its first token.

    Attributes:
        tokens: tokens that it yielded, 1 where nothing was drafted.
        drafted: draft tokens that it verified.
        accepted: of these, how many became the answer's.
    """

    tokens: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One sample's whole answer; ``cut``: it ended with its last allowed token, so its last round may be cut short."""

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...] = ()
    cut: bool = True


@dataclass(frozen=True, slots=True)
class Replies:
    """Answers in the order of what was asked (samples of one prompt together) and the wall time of all, in seconds."""

    answers: tuple[Reply, ...]
    seconds: float


class Asking(Protocol):
    """An engine that can answer with speculation and without, by the same weights."""

    def answer(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, speculate: bool) -> Replies:
        """Answer all prompts, in flight together; ``params`` one a prompt."""

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The base engine's logits of every position, float32 [S, V]."""


class EngineAsking:
    """An engine directory's engine, which speculates.

    Raises:
        ForgeError: ``TF-EVL-011`` the engine does not speculate.
    """

    def __init__(self, engine: Engine) -> None:
        core: Any = engine.core
        if getattr(core, "speculator", None) is None:
            raise ForgeError(
                "TF-EVL-011",
                "the engine does not speculate",
                asked="with speculation against without it",
                why="engine.json has no record of speculation, or the runtime was told to leave it off.",
                remedies=["set speculation.method in the recipe and build again", "trtforge engine info BUNDLE"],
            )
        self._engine, self._core = engine, core
        self._calls = itertools.count()

    def answer(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, speculate: bool) -> Replies:
        from runtime.offline import error_from_json
        from runtime.request import Request

        call, started = next(self._calls), time.perf_counter()
        waiting = [
            Request(
                f"speculation-{call}-{index}",
                prompt_token_ids=list(prompt),
                params=one,
                # blocks of the two kinds stay apart: what was computed without drafts has no states for a drafter
                cache_salt="with drafts" if speculate else "without",
                speculate=speculate,
            )
            for index, (prompt, one) in enumerate(zip(prompts, params, strict=True))
        ]
        order = {request.request_id: index for index, request in enumerate(waiting)}
        samples: dict[tuple[int, int], _Open] = {}
        waiting.reverse()
        mine: set[str] = set()
        try:
            while waiting or mine:
                while waiting and len(self._core.scheduler.waiting) < self._core.config.max_waiting:
                    mine.add(self._core.add_request(self._core.prepare(waiting.pop())))
                for output in self._core.step():
                    if output.finished:
                        mine.discard(output.request_id)
                    if output.error is not None:
                        raise error_from_json(output.error)
                    for sample in output.samples:
                        samples.setdefault((order[output.request_id], sample.index), _Open()).add(sample)
        finally:
            for request_id in mine:
                self._core.abort(request_id)
        seconds = time.perf_counter() - started
        return Replies(tuple(samples[key].close() for key in sorted(samples)), seconds)

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return self._engine.logits(token_ids)

    def explain(self) -> dict[str, Any]:
        """What the policy says of itself: costs, acceptance, choices."""
        found: dict[str, Any] = self._core.speculator.policy.explain()
        return found

    @contextlib.contextmanager
    def policy(self, policy: Any) -> Iterator[None]:
        """For the block, drafts are chosen by ``policy`` instead of the recipe's; no request may be live."""
        speculator = self._core.speculator
        before, speculator.policy = speculator.policy, policy
        try:
            yield
        finally:
            speculator.policy = before


class _Open:
    """A sample whose outputs still come."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._rounds: list[Round] = []
        self._drafted = self._accepted = 0
        self._cut = False

    def add(self, sample: Any) -> None:
        from runtime.request import FinishReason

        drafted, accepted = sample.num_draft_tokens - self._drafted, sample.num_accepted_tokens - self._accepted
        self._drafted, self._accepted = sample.num_draft_tokens, sample.num_accepted_tokens
        # the first token is the prompt's: no draft stood behind it
        if self._tokens and sample.token_ids:
            self._rounds.append(Round(len(sample.token_ids), drafted, accepted))
        self._tokens.extend(sample.token_ids)
        if sample.finish_reason is not None:
            self._cut = sample.finish_reason is FinishReason.LENGTH

    def close(self) -> Reply:
        return Reply(tuple(self._tokens), tuple(self._rounds), self._cut)
