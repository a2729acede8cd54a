"""Drafters and policies for tests: they know the answers, or get them wrong in every way that there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Ask, Candidate, Choice, Computed, Draft, TapReader

#: the likeliest tokens behind a context, best first
Oracle = Callable[[list[int], int], list[int]]


class ToldDrafter:
    """Drafts what an oracle says, spoiled by a random number of wrong tokens.

    Keeps books of what it is told, and fails where that is not what the protocol promises.

    Args:
        oracle: see :data:`Oracle`.
        vocab_size: V; wrong tokens are drawn from it.
        right: share of draft tokens that are as the oracle says.
        refuse: share of asks that get no draft, or a shorter one.
        top_k: children of a tree's node.
    """

    def __init__(
        self,
        oracle: Oracle,
        vocab_size: int,
        *,
        right: float = 1.0,
        refuse: float = 0.0,
        top_k: int = 2,
        name: str = "told",
        block_size: int = 0,
        seed: int = 0,
    ) -> None:
        self.name, self.ordinary = name, True
        self._oracle, self._vocab_size = oracle, vocab_size
        self._right, self._refuse, self._top_k = right, refuse, top_k
        self._block_size = block_size
        self._rng = np.random.default_rng(seed)
        #: positions that each live sequence is known to have computed
        self.known: dict[TokenSequence, int] = {}
        self.left: list[TokenSequence] = []
        self.copied: list[tuple[int, int]] = []
        self.closed = False

    def ready(self, sequence: TokenSequence) -> bool:
        return self.known.get(sequence) == sequence.computed

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        return [self._draft(ask) for ask in asks]

    def _draft(self, ask: Ask) -> Draft | None:
        sequence, count = ask.sequence, ask.count
        assert count >= 1 and sequence.length - sequence.computed == 1
        assert self.known.get(sequence) == sequence.computed, "a drafter was not told of what was computed"
        if self._block_size:
            assert len(sequence.blocks) * self._block_size >= sequence.length + count, "no blocks for the draft"
        if self._rng.random() < self._refuse:
            count = int(self._rng.integers(0, count + 1))
            if not count:
                return None
        context = sequence.tokens[: sequence.length].tolist()
        return self._tree(context, count) if ask.tree else self._chain(context, count)

    def _chain(self, context: list[int], count: int) -> Draft:
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(self._spoil(self._oracle(context + tokens, 1)[0]))
        return Draft(np.array(tokens, dtype=np.int64), self.name)

    def _tree(self, context: list[int], count: int) -> Draft:
        """Breadth first, each node's best children in a random order, now and then one twice."""
        tokens: list[int] = []
        parents: list[int] = []
        ways: list[list[int]] = [[]]
        at = 0
        while len(tokens) < count:
            children = self._oracle(context + ways[at], self._top_k)
            self._rng.shuffle(children)
            if self._rng.random() < 0.1:
                children.append(children[0])
            for child in children[: count - len(tokens)]:
                token = self._spoil(child)
                tokens.append(token)
                parents.append(at)
                ways.append([*ways[at], token])
            at += 1
        return Draft(np.array(tokens, dtype=np.int64), self.name, np.array(parents, dtype=np.int32))

    def _spoil(self, token: int) -> int:
        return token if self._rng.random() < self._right else int(self._rng.integers(0, self._vocab_size))

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        seen = [of.sequence for of in computed]
        assert len(set(map(id, seen))) == len(seen), "a sequence is told of twice"
        for of in computed:
            before = self.known.get(of.sequence)
            # it goes on, it was preempted, or it is new and begins on shared blocks
            assert before is None or of.start <= before, "positions were left out"
            assert of.start + len(of.rows) == of.sequence.computed
            assert (np.diff(of.rows) > 0).all()
            self.known[of.sequence] = of.sequence.computed

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        for child in children:
            assert child.computed == self.known[parent]
            self.known[child] = child.computed

    def leave(self, sequence: TokenSequence) -> None:
        self.known.pop(sequence, None)
        self.left.append(sequence)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.copied.extend(pairs)

    def describe(self) -> dict[str, Any]:
        return {"drafter": self.name}

    def close(self) -> None:
        self.closed = True


class AlwaysPolicy:
    """The last candidate (a model before the text at hand), always ``count`` tokens; notes what it is told."""

    def __init__(self, count: int, *, tree: bool = False) -> None:
        self.count, self.tree = count, tree
        self.records: list[tuple[str, int, int, bool]] = []
        self.times: list[tuple[str, int, int]] = []
        self.left = 0

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        assert len(candidates) <= running
        picked = [group[-1] for group in candidates]
        return [Choice(of, self.count, self.tree and not of.ready) for of in picked]

    def record(
        self,
        sequence: TokenSequence,
        source: str,
        drafted: int,
        accepted: int,
        *,
        tree: bool,
        asked: int | None = None,
    ) -> None:
        assert 0 <= accepted <= drafted
        self.records.append((source, drafted, accepted, tree))

    def points(self) -> list[Any]:
        return []

    def learn(self, sequence: TokenSequence, source: str, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        assert seconds >= 0 and requests > 0
        self.times.append((part, tokens, requests))

    def leave(self, sequence: TokenSequence) -> None:
        self.left += 1

    def explain(self) -> dict[str, Any]:
        return {"policy": "always", "count": self.count}
