"""A head's accepted lengths on given greedy answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quantize.speculative.acceptance import Acceptance, judge
from quantize.speculative.conversations import Conversation
from quantize.speculative.draft_module import DraftModule
from quantize.speculative.rollout import Batch, roll_out
from quantize.speculative.states import LEAST_ANSWER, StateWriter


@torch.no_grad()
def judge_answers(
    draft: DraftModule, writer: StateWriter, answers: Sequence[Conversation], drafts: int
) -> list[Acceptance]:
    """The rounds of each answer, in float32; answers too short to draft in are left out."""
    found: list[Acceptance] = []
    for answer in answers:
        if len(answer.answer) < LEAST_ANSWER:
            continue
        taps, last = (part[None].float() for part in writer.states([answer.tokens])[0])
        counted = torch.zeros(1, len(answer.tokens), dtype=torch.bool)
        counted[0, len(answer.prompt) : -1] = True
        batch = Batch(torch.tensor([answer.tokens]), taps, last, counted)
        found += judge(draft, batch, roll_out(draft, batch, drafts, 1.0, dtype=None))
    return found
