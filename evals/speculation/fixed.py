"""A policy that always drafts as far as it may: what quality is measured with, since times must not decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Candidate, Choice


class FixedPolicy:
    """All tokens of each sequence's first candidate; ``nodes``: those of the engine's trees, where it drafts trees."""

    def __init__(self, nodes: int | None = None) -> None:
        self._nodes = nodes

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        return [self._all(group[0]) for group in candidates]

    def _all(self, candidate: Candidate) -> Choice:
        # what is ready is an n-gram's draft, a chain whatever the head grows
        if self._nodes is None or candidate.ready:
            return Choice(candidate, candidate.most)
        return Choice(candidate, self._nodes, tree=True)

    def record(self, sequence: TokenSequence, source: str, drafted: int, accepted: int, *, tree: bool) -> None:
        """Learns nothing."""

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Learns nothing."""

    def leave(self, sequence: TokenSequence) -> None:
        """Keeps nothing."""

    def explain(self) -> dict[str, Any]:
        return {"adaptive": False, "tree_nodes": self._nodes}
