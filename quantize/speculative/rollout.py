"""Drafting from every position of a text at once, as training sees it: the loss, and which drafts are right.

Step 0 reads the target's states; each further step reads what the one before it fed back, one position later (the
"training-time test" of EAGLE-3, arXiv:2503.01840). The tokens in between are those of the text, so a step's draft is
judged as if all drafts before it had been accepted, which is the only case in which it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quantize.speculative.draft_module import DraftModule


@dataclass(frozen=True)
class Batch:
    """Texts of one batch, padded behind their ends.

    Attributes:
        tokens: int64 [B, S].
        taps: [B, S, 3·H], the target's tapped states.
        last: [B, S, H], the target's normed last states, of which its head makes logits.
        counted: bool [B, S]: the target's prediction at this position is one to learn or to judge.
    """

    tokens: Tensor
    taps: Tensor
    last: Tensor
    counted: Tensor


@dataclass(frozen=True)
class Rolled:
    """What a roll-out gave.

    Attributes:
        loss: mean over the counted positions and the steps, scalar; step s is weighted by ``decay`` to the s.
        drafted: int64 [steps, n], the draft token of each step at each counted position.
        wanted: int64 [n], the draft token that the target's own logits favour.
        places: int64 [n], the counted positions in the flattened batch.
    """

    loss: Tensor
    drafted: Tensor
    wanted: Tensor
    places: Tensor


def roll_out(draft: DraftModule, batch: Batch, steps: int, decay: float, *, dtype: torch.dtype | None) -> Rolled:
    """Draft ``steps`` tokens from every position.

    Args:
        decay: weight of a step's loss relative to that of the step before it.
        dtype: what matrix products are computed in; None: float32.
    """
    from transformers import DynamicCache

    size, length = batch.tokens.shape
    width = batch.last.shape[-1]
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        places = batch.counted.flatten().nonzero().squeeze(1)
        with torch.no_grad():
            last, rows = batch.last.reshape(-1, width)[places], draft.target_rows
            favour = F.linear(last.to(dtype or torch.float32), rows.to(dtype or torch.float32)).softmax(
                -1, dtype=torch.float32
            )
            wanted = favour.argmax(-1)
            embedded = F.embedding(batch.tokens.roll(-1, 1), draft.embedding)
        states, cache = draft.join(batch.taps), DynamicCache()
        positions = torch.arange(length)[None].expand(size, length)
        loss: Any = torch.zeros(())
        drafted = []
        weight = sum(decay**step for step in range(steps))
        for step in range(steps):
            normed, fed = draft.step(states, embedded, positions, cache)
            # the state at a position reads the token behind it, so it drafts what the next position predicts
            logits = draft.module.lm_head(normed.reshape(-1, width)[places - 1])
            loss = loss + decay**step * _Distance.apply(logits, favour, 1 / max(1, len(places))) / weight
            drafted.append(logits.detach().argmax(-1))
            states = fed.roll(1, 1)
    return Rolled(loss, torch.stack(drafted), wanted, places)


class _Distance(torch.autograd.Function):
    """Cross-entropy against probabilities, without keeping the logarithms that autograd would keep."""

    @staticmethod
    def forward(context: Any, logits: Tensor, favour: Tensor, weight: float) -> Tensor:
        wide = logits.float()
        total = wide.logsumexp(-1, keepdim=True)
        loss = (total.sum() - torch.dot(favour.flatten(), wide.flatten())) * weight
        context.save_for_backward((wide - total).exp_().sub_(favour).to(logits.dtype))
        context.weight = weight
        return loss

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (difference,) = context.saved_tensors
        return difference * (context.weight * gradients[0]), None, None


def first_logits(draft: DraftModule, tokens: Tensor, taps: Tensor) -> Tensor:
    """Logits [B, S, Vd] of the first step, in float32, for tokens [B, S]; the last position reads no token."""
    from transformers import DynamicCache

    positions = torch.arange(tokens.shape[1])[None].expand(len(tokens), -1)
    embedded = F.embedding(tokens.roll(-1, 1), draft.embedding).float()
    normed, _ = draft.step(draft.join(taps.float()), embedded, positions, DynamicCache())
    logits: Tensor = draft.module.lm_head(normed)
    return logits
