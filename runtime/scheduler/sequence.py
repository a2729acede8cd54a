"""One sequence: tokens known, tokens computed, blocks held."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from runtime.blocks.hashing import PrefixHasher


class SequenceStatus(enum.Enum):
    """Life of a sequence: waiting → running (→ waiting by preemption) … → finished."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens and blocks of one sample.

    ``length`` counts known tokens, ``computed`` those whose keys and values lie in the pool. Between
    steps of a running sequence ``computed < length``; a sequence with one token outstanding decodes, one with
    more is in prefill (also after preemption, when its own output is recomputed).

    Args:
        key: identity for messages.
        prompt: int64 [n]; copied into a buffer of ``capacity`` tokens.
        capacity: most tokens it can ever know, prompt and output.
        hasher: digests of its full blocks.
        priority: higher is served earlier.
        order: number of arrival; unique per request.
        sample: index among the request's samples; breaks ties of order.
        slots: batch rows to reserve: n before the samples fork, 1 after.
        speculates: the request lets it be drafted for.
    """

    def __init__(
        self,
        key: str,
        prompt: npt.NDArray[np.int64],
        *,
        capacity: int,
        hasher: PrefixHasher,
        priority: int = 0,
        order: int = 0,
        sample: int = 0,
        slots: int = 1,
        now: float = 0.0,
        speculates: bool = True,
    ) -> None:
        self.key = key
        self.tokens = np.zeros(capacity, dtype=np.int64)
        self.tokens[: len(prompt)] = prompt
        self.prompt_length = self.length = len(prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.published = 0
        self.hasher = hasher
        self.copy_pending = False
        self.priority = priority
        self.order = order
        self.sample = sample
        self.slots = slots
        self.speculates = speculates
        self.row = -1
        self.rank: tuple[float, int, int] = (-priority, order, sample)
        self.status = SequenceStatus.WAITING
        self.waiting_since = now
        self.cached_tokens: int | None = None
        self.preemptions = 0
        self.lost = 0  # computed tokens that a preemption took

    def fork(self, sample: int) -> Sequence:
        """Another sample that shares everything so far. The caller holds the blocks for it."""
        other = Sequence(
            self.key,
            self.tokens[: self.length],
            capacity=len(self.tokens),
            hasher=self.hasher.fork(),
            priority=self.priority,
            order=self.order,
            sample=sample,
            speculates=self.speculates,
        )
        other.prompt_length = self.prompt_length
        other.computed = self.computed
        other.blocks = list(self.blocks)
        other.published = self.published
        other.cached_tokens = self.cached_tokens
        other.rank = (self.rank[0], self.rank[1], sample)
        return other

    @property
    def spent(self) -> int:
        """Tokens that were computed for this sample alone; found prefixes and what it shares after a fork are not."""
        shared = self.prompt_length if self.sample else self.cached_tokens or 0
        return max(0, max(self.computed, self.lost) - shared)

    @property
    def outstanding(self) -> int:
        """Known tokens that are not computed yet."""
        return self.length - self.computed

    def extend(self, tokens: list[int]) -> None:
        self.tokens[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1
