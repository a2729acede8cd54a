"""Stages of ``trtforge speculate train``: text, states, training, head. They follow a recipe's engine."""

from __future__ import annotations

from dataclasses import dataclass

from trtforge.pipeline.stage import Stage


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


def draft_stages(options: DraftOptions) -> list[Stage]:
    """The stages behind ``build``, in the order in which they run."""
    from trtforge.pipeline.stages.drafter.head import DraftHeadStage
    from trtforge.pipeline.stages.drafter.states import DraftStatesStage
    from trtforge.pipeline.stages.drafter.text import DraftTextStage
    from trtforge.pipeline.stages.drafter.training import DraftTrainStage

    return [DraftTextStage(options), DraftStatesStage(options), DraftTrainStage(options), DraftHeadStage(options)]
