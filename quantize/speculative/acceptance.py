"""Accepted lengths of greedy chains on text that the target wrote greedily.

Round after round starts where the last one ended; the drafts of a round are accepted up to the first that is not the
text's own token, and the target's token behind them is the bonus. On greedy text this is what a greedy verification
does, so no target is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantize.speculative.draft_module import DraftModule
from quantize.speculative.rollout import Batch, Rolled


@dataclass(frozen=True)
class Acceptance:
    """Attributes:
    rounds: verifications.
    tokens: what they yielded, bonus tokens included.
    reached: rounds in which the draft at each position was looked at, because all before it were accepted.
    accepted: of these, how often it was accepted.
    """

    rounds: int
    tokens: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens that a verification yields, the bonus token included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    def to_json(self) -> dict[str, Any]:
        shares = [round(hit / seen, 4) if seen else None for hit, seen in zip(self.accepted, self.reached, strict=True)]
        return {"accepted_length": round(self.length, 4), "rounds": self.rounds, "accepted_by_position": shares}


def chain(right: Sequence[Sequence[bool]], steps: int) -> Acceptance:
    """The rounds of one text.

    Args:
        right: for each place of the answer whose token a round may draft first, whether the draft of each step is the
            text's token, if those before it are; a row ends where the text does.
        steps: drafts of a round.
    """
    rounds = tokens = place = 0
    reached, accepted = [0] * steps, [0] * steps
    while place < len(right):
        hits = 0
        for step, hit in enumerate(right[place]):
            reached[step] += 1
            if not hit:
                break
            accepted[step] += 1
            hits += 1
        # behind the last token there is no bonus
        made = min(hits + 1, len(right) - place)
        rounds, tokens, place = rounds + 1, tokens + made, place + made
    return Acceptance(rounds, tokens, tuple(reached), tuple(accepted))


def judge(draft: DraftModule, batch: Batch, rolled: Rolled) -> list[Acceptance]:
    """The rounds of each text of a batch whose counted positions are all of its answer's."""
    targets = torch.tensor(draft.tokens)
    truth = batch.tokens.roll(-1, 1).flatten()[rolled.places]
    right = targets[rolled.drafted] == truth
    rows = _by_text(right, rolled.places, batch.tokens.shape[1], len(batch.tokens))
    return [chain(text, len(rolled.drafted)) for text in rows]


def _by_text(right: Tensor, places: Tensor, length: int, count: int) -> list[list[list[bool]]]:
    """``right`` [steps, n] as rows of rounds: text → place → whether each step's draft is right."""
    steps = right.shape[0]
    owners = places // length
    result = []
    for text in range(count):
        columns = right[:, owners == text].T.tolist()
        # the draft of step s in a round that starts at place i is judged at place i + s; a row ends where the text does
        result.append(
            [
                [columns[place + step][step] for step in range(min(steps, len(columns) - place))]
                for place in range(len(columns))
            ]
        )
    return result


def merged(found: Iterable[Acceptance], steps: int) -> Acceptance:
    """All rounds of several texts together."""
    rounds = tokens = 0
    reached, accepted = [0] * steps, [0] * steps
    for item in found:
        rounds, tokens = rounds + item.rounds, tokens + item.tokens
        for step, (seen, hit) in enumerate(zip(item.reached, item.accepted, strict=True)):
            reached[step] += seen
            accepted[step] += hit
    return Acceptance(rounds, tokens, tuple(reached), tuple(accepted))
