"""Counts and times of speculation, for the metrics of an engine that speculates.

Names are those that vLLM's users know (``spec_decode_…``), with two labels: *source* says who drafted, *position*
counts from 0 as there, which is the token next to the root. Of a tree a position is a depth, and its draft tokens are
all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.speculation.draft import Draft, Point

HELP = {
    "spec_decode_num_drafts_total": "Drafts verified",
    "spec_decode_num_draft_tokens_total": "Draft tokens verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_drafts_per_pos_total": "Drafts that reached a position, 0 being the first",
    "spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted at a position, 0 being the first",
    "spec_decode_num_skipped_total": "Tokens decoded without a draft",
    "spec_decode_draft_len": "Tokens of the last draft",
    "spec_decode_acceptance_rate": "Accepted share of the draft tokens",
    "spec_decode_acceptance_length": "Tokens that a verification yields, the one beyond the draft included",
    "spec_decode_draft_seconds_total": "Time of drafting",
    "spec_decode_verify_seconds_total": "Time of the steps that verified drafts",
    "spec_decode_policy_draft_len": "Draft tokens that the policy chose of late, by source",
    "spec_decode_policy_acceptance": "Acceptance that the policy counts with, position 0 being the first",
    "spec_decode_policy_verify_seconds": "What the policy takes a step of so many tokens of one request to cost",
    "spec_decode_policy_draft_seconds": "What the policy takes a draft of so many tokens for one request to cost",
    "spec_decode_policy_ended": "1: the acceptance threshold has ended drafting for good",
}

#: of what the policy says it would choose
CHOICE_HELP = {
    "spec_decode_choice_draft_len": "Draft tokens that would pay best if a source drafted for all running requests",
    "spec_decode_choice_speedup": "Tokens a second with that many draft tokens, over those without drafts",
}


def choice_points(explanation: Mapping[str, Any]) -> Iterator[Point]:
    """What a policy would choose by its costs and acceptance now, by source and by the number of running requests.

    Args:
        explanation: of :meth:`runtime.speculation.draft.Policy.explain`.
    """
    for running, sources in explanation.get("choices", {}).items():
        for source, choice in sources.items():
            labels = {"source": source, "running": str(running)}
            yield "spec_decode_choice_draft_len", labels, choice["draft_tokens"]
            yield "spec_decode_choice_speedup", labels, choice["speedup"]


@dataclass(slots=True)
class SourceFigures:
    """What came of one source's drafts; the lists are by position."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    last: int = 0

    def add(self, tokens: int, depth: int, accepted: int) -> None:
        """Count one verification: ``tokens`` in a draft of ``depth``, of which ``accepted`` became the answer's."""
        self.drafts += 1
        self.draft_tokens += tokens
        self.accepted_tokens += accepted
        self.last = tokens
        while len(self.reached) < depth:
            self.reached.append(0)
            self.accepted.append(0)
        for position in range(depth):
            self.reached[position] += 1
        for position in range(accepted):
            self.accepted[position] += 1


@dataclass(slots=True)
class SpeculationFigures:
    """Figures of one engine; the stepping thread writes, anybody reads, right to within a step."""

    sources: dict[str, SourceFigures] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "verify": 0.0})
    num_skipped: int = 0
    #: figures of the policy that drafts now
    policy: Callable[[], Iterable[Point]] | None = None

    def verified(self, draft: Draft, accepted: int) -> None:
        """A draft was verified; ``accepted`` of its tokens (a tree's path) are the sequence's now."""
        figures = self.sources.get(draft.source)
        if figures is None:
            figures = self.sources.setdefault(draft.source, SourceFigures())
        figures.add(len(draft.tokens), draft.levels(), accepted)

    def skipped(self, count: int) -> None:
        """``count`` sequences decoded their next token without a draft."""
        self.num_skipped += count

    def timed(self, part: str, seconds: float) -> None:
        """Time of ``draft`` or ``verify``, in seconds."""
        self.seconds[part] += seconds

    def snapshot(self) -> dict[str, Any]:
        """Every figure as a JSON-able dict, totals first; ``sources`` holds those by source and position."""
        sources = {
            name: {
                "num_drafts": of.drafts,
                "num_draft_tokens": of.draft_tokens,
                "num_accepted_tokens": of.accepted_tokens,
                "drafts_per_pos": list(of.reached),
                "accepted_per_pos": list(of.accepted),
                "draft_len": of.last,
            }
            for name, of in list(self.sources.items())
        }
        return {
            **self._totals(),
            "num_skipped": self.num_skipped,
            "draft_seconds": self.seconds["draft"],
            "verify_seconds": self.seconds["verify"],
            "sources": sources,
        }

    def _totals(self) -> dict[str, Any]:
        all_sources = list(self.sources.values())
        drafts = sum(of.drafts for of in all_sources)
        drafted = sum(of.draft_tokens for of in all_sources)
        accepted = sum(of.accepted_tokens for of in all_sources)
        return {
            "num_drafts": drafts,
            "num_draft_tokens": drafted,
            "num_accepted_tokens": accepted,
            "acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_length": (drafts + accepted) / drafts if drafts else 0.0,
        }

    def points(self) -> Iterator[Point]:
        """Every figure with its labels, names without the prefix."""
        totals = self._totals()
        for name in ("acceptance_rate", "acceptance_length"):
            yield f"spec_decode_{name}", {}, totals[name]
        yield "spec_decode_num_skipped_total", {}, self.num_skipped
        for part, seconds in self.seconds.items():
            yield f"spec_decode_{part}_seconds_total", {}, seconds
        for source, of in list(self.sources.items()):
            labels = {"source": source}
            yield "spec_decode_num_drafts_total", labels, of.drafts
            yield "spec_decode_num_draft_tokens_total", labels, of.draft_tokens
            yield "spec_decode_num_accepted_tokens_total", labels, of.accepted_tokens
            yield "spec_decode_draft_len", labels, of.last
            for position, (reached, accepted) in enumerate(zip(of.reached, of.accepted, strict=False)):
                at = {**labels, "position": str(position)}
                yield "spec_decode_num_drafts_per_pos_total", at, reached
                yield "spec_decode_num_accepted_tokens_per_pos_total", at, accepted
        if self.policy is not None:
            yield from self.policy()
