"""Stages of ``trtforge speculate train``: text, states, training, head. They follow a recipe's engine."""

from __future__ import annotations

from trtforge.pipeline.stage import Stage
from trtforge.pipeline.stages.drafter.options import DraftOptions


def draft_stages(options: DraftOptions) -> list[Stage]:
    """The stages behind ``build``, in the order in which they run."""
    from trtforge.pipeline.stages.drafter.head import DraftHeadStage
    from trtforge.pipeline.stages.drafter.states import DraftStatesStage
    from trtforge.pipeline.stages.drafter.text import DraftTextStage
    from trtforge.pipeline.stages.drafter.training import DraftTrainStage

    return [DraftTextStage(options), DraftStatesStage(options), DraftTrainStage(options), DraftHeadStage(options)]
