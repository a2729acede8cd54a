"""Drafts of one length, whatever they cost: what ``adaptive: false`` and a measurement of quality want."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Candidate, Choice, Point
from runtime.speculation.overrides import Overrides
from trtforge.drafting.record import DraftPolicy


class FixedPolicy:
    """Always drafts as far as it may: a ready draft before one that has to be made, a tree where one is configured.

    With a ``draft_len_schedule`` the length is the schedule's, and drafts are chains where it is not the longest.
    """

    def __init__(
        self,
        max_draft_len: int,
        *,
        tree: bool = False,
        overrides: DraftPolicy = DraftPolicy(adaptive=False),
    ) -> None:
        self.max_draft_len = max_draft_len
        self.tree = tree
        self._overrides = Overrides(overrides)

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        """The first ready candidate of each sequence, else the first."""
        self._overrides.step()
        length = self._overrides.length(running, self.max_draft_len)
        chosen = []
        for group in candidates:
            candidate = next((one for one in group if one.ready), group[0])
            tree = self.tree and not candidate.ready and length == self.max_draft_len
            chosen.append(Choice(candidate, candidate.most if tree else min(candidate.most, length), tree))
        return chosen

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
        """Counts for the acceptance threshold alone."""
        self._overrides.verified(drafted, accepted)

    def learn(self, sequence: TokenSequence, source: str, drafted: int, accepted: int) -> None:
        """Nothing is learned."""

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Times change nothing."""

    def leave(self, sequence: TokenSequence) -> None:
        """Nothing is known of a sequence."""

    def points(self) -> Iterator[Point]:
        """See :class:`~runtime.speculation.draft.Policy`."""
        yield "spec_decode_policy_ended", {}, float(self._overrides.ended)

    def explain(self) -> dict[str, Any]:
        """Length, tree and overrides."""
        return {
            "adaptive": False,
            "max_draft_len": self.max_draft_len,
            "tree": self.tree,
            "overrides": self._overrides.explain(),
        }
