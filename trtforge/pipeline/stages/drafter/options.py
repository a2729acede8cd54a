"""What is asked of a training of a head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftOptions:
    """What is asked of a training; each stage's key has the part that decides it.

    Attributes:
        seed: of prompts, sampling, first weights and the order of batches.
        tokens: tokens of answers to generate, at least.
        answer: most tokens of an answer.
        draft_vocab: tokens that the head may draft.
        draft_steps: drafts of a training step's roll-out.
        epochs: passes over the text, where ``steps`` is None.
        time_budget: seconds of training; None: none.
        drafts: drafts of a verification in the figures.
        figure_prompts: held-out prompts of each class in the figures.
    """

    seed: int = 0
    tokens: int = 400_000
    answer: int = 224
    draft_vocab: int = 4096
    draft_steps: int = 4
    epochs: float = 8.0
    steps: int | None = None
    time_budget: float | None = None
    batch_tokens: int = 1024
    learning_rate: float = 2e-3
    drafts: int = 4
    figure_prompts: int = 24
