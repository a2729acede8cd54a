"""A policy that always drafts as far as it may: what quality is measured with, since times must not decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Candidate, Choice


class FixedPolicy:
    """All tokens (of a tree all nodes) of each sequence's first candidate."""

    def __init__(self, *, tree: bool = False) -> None:
        self._tree = tree

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        # an n-gram's draft is a chain, whatever the head grows
        return [Choice(group[0], group[0].most, self._tree and not group[0].ready) for group in candidates]

    def record(self, sequence: TokenSequence, source: str, drafted: int, accepted: int, *, tree: bool) -> None:
        """Learns nothing."""

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Learns nothing."""

    def leave(self, sequence: TokenSequence) -> None:
        """Keeps nothing."""

    def explain(self) -> dict[str, Any]:
        return {"adaptive": False, "tree": self._tree}
