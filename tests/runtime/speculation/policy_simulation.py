"""A server whose steps cost and whose drafts are right as a test says: what a policy would make of it.

Time is simulated. Tokens are counted by their expectation, so that luck does not decide; what the policy sees is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.speculation.costs import StepCosts
from runtime.speculation.draft import Candidate, Policy

#: the target's step by tokens in one request, milliseconds, measured on two cores (135 million weights)
BFLOAT16 = {1: 8.2, 2: 8.5, 3: 8.9, 4: 9.4, 5: 10.1, 6: 10.5, 8: 11.5, 12: 12.8, 16: 14.9, 64: 42.0, 144: 88.0}
FP8 = {1: 8.7, 2: 9.7, 3: 10.1, 4: 10.5, 5: 11.1, 6: 11.8, 8: 13.4, 12: 15.4, 16: 17.6, 64: 48.0, 144: 100.0}
INT4 = {1: 4.8, 2: 5.2, 3: 6.0, 4: 6.7, 5: 9.8, 6: 10.1, 8: 10.9, 12: 14.4, 16: 18.0, 64: 66.0, 144: 146.0}
#: blocks of 32 rows, the weights read once for each (AMX, one thread)
BLOCKS = {1: 28.8, 2: 29.1, 4: 30.0, 8: 31.7, 12: 33.5, 16: 35.5, 24: 41.2, 32: 44.9, 33: 68.2, 48: 74.9, 64: 84.9}
BLOCKS |= {65: 100.3, 96: 113.0, 97: 129.0, 128: 141.0, 129: 157.0, 144: 163.0}
#: bound by memory up to many tokens, then by arithmetic, as a GPU is
FLAT = {1: 10.0, 64: 10.5, 128: 11.5, 144: 12.0}
#: bound by arithmetic from the first token
STEEP = {1: 10.0, 2: 17.0, 4: 31.0, 8: 60.0, 144: 1050.0}
#: the draft's pass by requests, milliseconds
HEAD = {1: 0.8, 4: 1.0, 16: 1.7}
DEAR_HEAD = {1: 6.0, 4: 8.0, 16: 14.0}


class Stream:
    """One decoding sequence: what its drafts are worth, and how much is left of it."""

    def __init__(self, kind: int, left: int) -> None:
        self.kind, self.left = kind, left


@dataclass
class World:
    """What is true.

    Attributes:
        verify: milliseconds by tokens of one request.
        acceptance: (source, kind of stream, step) → acceptance by position.
        available: chance that a stream has an n-gram draft in a step, by source; they exclude each other.
        head: milliseconds of a draft pass by requests; None: no drafter with weights.
        beside: milliseconds that each further request adds to a step of the same tokens.
        noise: relative spread of a step's time; also of what was measured at load.
        kinds: kinds of streams, taken in turn.
        doubt: chance that the head foresees that its next token is wrong, and ends its chain where it may.
        host: milliseconds of Python in a step, and in one that verifies drafts.
    """

    verify: Mapping[int, float]
    acceptance: Callable[[str, int, int], Sequence[float]]
    available: Mapping[str, float] = field(default_factory=dict)
    head: Mapping[int, float] | None = None
    beside: float = 0.15
    noise: float = 0.0
    kinds: int = 1
    answer: int = 160
    doubt: float = 0.0
    host: tuple[float, float] = (0.0, 0.0)

    def costs(self, seed: int = 0) -> StepCosts:
        """What would have been measured at load."""
        rng = np.random.default_rng(seed)

        def seen(milliseconds: float) -> float:
            return 1e-3 * milliseconds * float(np.exp(self.noise / 3 * rng.standard_normal()))

        alone = np.interp(np.arange(145), list(self.verify), list(self.verify.values()))
        requests = {n: float(alone[n]) + self.beside * (n - 1) for n in (1, 2, 4, 8, 16)}
        return StepCosts(
            {tokens: seen(value) for tokens, value in self.verify.items()},
            {n: seen(value) for n, value in requests.items()},
            None if self.head is None else {n: seen(value) for n, value in self.head.items()},
            most_tokens=512,
        )


@dataclass
class Outcome:
    """Expected tokens, seconds, steps that drafted, draft tokens, by simulated steps."""

    tokens: float = 0.0
    seconds: float = 0.0
    drafting: int = 0
    drafted: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Right:
    """How many tokens of a stream's draft would be right in a step, by who drafts."""

    def __init__(self, world: World, one: Stream, step: int, draws: Sequence[float]) -> None:
        self._world, self._one, self._step, self._draws = world, one, step, draws

    def of(self, source: str) -> int:
        truth = self._world.acceptance(source, self._one.kind, self._step)
        longest = len(self._draws)
        return next((at for at in range(longest) if self._draws[at] >= truth[at]), longest)


def run(
    world: World,
    policy: Policy | None,
    *,
    concurrency: int,
    steps: int = 500,
    longest: int = 8,
    seed: int = 1,
    prefill: Callable[[int], int] = lambda step: 0,
) -> Outcome:
    """Simulate; without a policy nothing is drafted."""
    # what is drawn does not depend on what the policy does, so that luck is the same for all policies
    lengths, offers, luck, spread, doubts = (np.random.default_rng([seed, number]) for number in range(5))
    alone = np.interp(np.arange(4097), list(world.verify), list(world.verify.values()))
    top = max(world.verify)
    slope = (alone[top] - alone[top // 2]) / (top - top // 2)
    alone[top:] = alone[top] + slope * np.arange(4097 - top)
    outcome, made = Outcome(), 0

    def stream() -> Stream:
        nonlocal made
        made += 1
        return Stream((made - 1) % world.kinds, int(world.answer * lengths.uniform(0.5, 1.5)))

    streams = [stream() for _ in range(concurrency)]
    for step in range(steps):
        groups, prompts = [], prefill(step)
        for one in streams:
            group = []
            pick = offers.random()
            for source, chance in world.available.items():
                if pick < chance:
                    group.append(Candidate(one, source, longest, ready=True))
                    break
                pick -= chance
            if world.head is not None:
                group.append(Candidate(one, "eagle3", longest))
            if group:
                groups.append(group)
        choices = policy.choose(groups, running=concurrency, prefill_tokens=prompts) if policy and groups else []
        chosen = {choice.candidate.sequence: choice for choice in choices if choice.count}
        rights = {one: Right(world, one, step, luck.random(longest)) for one in streams}
        doubted = dict(zip(streams, doubts.random(concurrency) < world.doubt, strict=True))
        counts = {}
        for one, choice in chosen.items():
            right = rights[one].of(choice.candidate.source)
            ends = doubted[one] and choice.worth > 0 and not choice.candidate.ready
            counts[one] = min(choice.count, max(right, 1)) if ends else choice.count
        draft_tokens = sum(counts.values())
        model = [counts[one] for one, choice in chosen.items() if not choice.candidate.ready]
        tokens = concurrency + draft_tokens
        verify = alone[tokens + prompts] + world.beside * (concurrency - 1)
        verify *= float(np.exp(world.noise * spread.standard_normal()))
        passes = 0.0
        if model and world.head is not None:
            passes = max(model) * float(np.interp(len(model), list(world.head), list(world.head.values())))
        outcome.seconds += 1e-3 * (verify + passes + world.host[bool(chosen)])
        outcome.drafting += bool(chosen)
        outcome.drafted += draft_tokens
        for index, one in enumerate(streams):
            outcome.tokens += 1
            choice, accepted = chosen.get(one), 0
            for group in groups:
                for candidate in group:
                    if candidate.sequence is not one:
                        continue
                    right = rights[one].of(candidate.source)
                    if choice is not None and choice.candidate is candidate:
                        accepted = min(right, choice.count)
                        truth = world.acceptance(candidate.source, one.kind, step)
                        outcome.tokens += float(np.cumprod(truth[: choice.count]).sum())
                        policy.record(
                            one, candidate.source, counts[one], accepted, tree=choice.tree, asked=choice.count
                        )
                    elif candidate.ready and policy is not None:
                        policy.learn(one, candidate.source, min(right + 1, longest), right)
            one.left -= 1 + accepted
            if one.left <= 0:
                if policy is not None:
                    policy.leave(one)
                streams[index] = stream()
        if policy is not None:
            if not prompts:
                policy.timed("verify", tokens, concurrency, 1e-3 * verify)
            if model:
                policy.timed("draft", max(model), len(model), 1e-3 * passes)
            if any(world.host):
                policy.timed("host", draft_tokens, concurrency, 1e-3 * world.host[bool(chosen)])
    return outcome
