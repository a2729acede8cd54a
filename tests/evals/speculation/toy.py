"""A language of three words with known probabilities, and engines over it that speculate rightly or wrongly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evals.speculation.asking import Replies, Reply, Round
from runtime.sampling.params import SamplingParams
from runtime.sampling.random import mix64, uniform

#: draft tokens of a round
DRAFT = 3


def toy_logits(tokens: Sequence[int], vocab: int = 3) -> npt.NDArray[np.float32]:
    """Logits [V] that depend on the last two tokens."""
    seed = mix64(sum((token + 1) * 31**place for place, token in enumerate(tokens[-2:])))
    bits = [mix64(seed + column) >> 40 for column in range(vocab)]
    return (np.array(bits, dtype=np.float32) * np.float32(3.0 / 2**24)).astype(np.float32)


@dataclass
class ToyAsking:
    """Answers by inverse distribution function under the engine's own random numbers; drafts are the base's tokens.

    Attributes:
        choose: logits, uniform number (None: greedy), whether a draft's row is read, how many tokens the answer has
            → token. A wrong engine has another.
        drafts: whether anything is drafted.
        seconds: wall times to report, one a call in turn, without and with speculation.
    """

    choose: Callable[[npt.NDArray[np.float32], float | None, bool, int], int]
    drafts: bool = True
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [1.0], True: [0.5]})
    calls: list[tuple[bool, int]] = field(default_factory=list)

    def answer(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, speculate: bool) -> Replies:
        answers = [
            self._one(prompt, one, sample, speculate)
            for prompt, one in zip(prompts, params, strict=True)
            for sample in range(one.n)
        ]
        self.calls.append((speculate, len(prompts)))
        times = self.seconds[speculate]
        return Replies(tuple(answers), times[sum(way == speculate for way, _ in self.calls) % len(times)])

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return np.stack([toy_logits(token_ids[: end + 1]) for end in range(len(token_ids))])

    def _one(self, prompt: Sequence[int], params: SamplingParams, sample: int, speculate: bool) -> Reply:
        tokens: list[int] = []
        rounds = []
        while len(tokens) < params.max_tokens:
            drafted = min(DRAFT, params.max_tokens - len(tokens) - 1) if speculate and self.drafts and tokens else 0
            for place in range(drafted + 1):
                row = toy_logits([*prompt, *tokens])
                number = None if params.greedy else uniform(params.seed or 0, sample, len(tokens))
                tokens.append(self.choose(row, number, speculate and drafted > 0 and place > 0, len(tokens)))
            if len(tokens) > 1:
                rounds.append(Round(drafted + 1, drafted, drafted))
        return Reply(tuple(tokens), tuple(rounds))


def right(row: npt.NDArray[np.float32], number: float | None, drafted: bool, length: int) -> int:
    """The sampler's own choice."""
    if number is None:
        return int(row.argmax())
    weights = np.exp(row.astype(np.float64))
    return int(np.searchsorted(np.cumsum(weights / weights.sum()), number, side="right"))


def too_likely(row: npt.NDArray[np.float32], number: float | None, drafted: bool, length: int) -> int:
    """Accepts the likeliest token too often where it was drafted, as acceptance without the residual does."""
    if drafted and number is not None and number < 0.25:
        return int(row.argmax())
    return right(row, number, drafted, length)


def parts_at(place: int, *, rank: int = 1) -> Callable[[npt.NDArray[np.float32], float | None, bool, int], int]:
    """Takes the token of another rank as number ``place`` of a speculated greedy answer."""

    def choose(row: npt.NDArray[np.float32], number: float | None, drafted: bool, length: int) -> int:
        if number is None and drafted and length == place:
            return int(np.argsort(-row)[rank])
        return right(row, number, drafted, length)

    return choose
