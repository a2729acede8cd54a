"""Drafts that nobody verified, held against what was written anyway: acceptance that is learned for nothing.

An n-gram draft exists whether or not it is verified. Where the policy does not take it, the tokens that the target
writes in the next steps tell how much of it was right.
"""

from __future__ import annotations

from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Draft, Policy


class Shadows:
    """At most one unverified draft a sequence, from when it is noted until it failed or was written out."""

    def __init__(self) -> None:
        self._held: dict[TokenSequence, tuple[int, Draft]] = {}

    def note(self, sequence: TokenSequence, draft: Draft) -> None:
        """Hold a chain for the tokens after those known now; an older one that is not settled yet stays instead."""
        self._held.setdefault(sequence, (sequence.length, draft))

    def settle(self, policy: Policy) -> None:
        """Record what has been decided by the tokens known now."""
        for sequence, (start, draft) in list(self._held.items()):
            written = sequence.tokens[start : sequence.length][: len(draft)]
            same = written == draft.tokens[: len(written)]
            right = len(same) if same.all() else int(same.argmin())
            if right < len(written):
                policy.learn(sequence, draft.source, right + 1, right)
            elif right == len(draft):
                policy.learn(sequence, draft.source, right, right)
            else:
                continue
            del self._held[sequence]

    def leave(self, sequence: TokenSequence) -> None:
        """The sequence ended: what is undecided stays unknown."""
        self._held.pop(sequence, None)
