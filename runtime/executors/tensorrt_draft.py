"""Runs the plan that drafts: an EAGLE-3 head compiled for TensorRT, beside its target's plan.

The head's graph has one plan with an input ``joined``; both sides of it are computed, and the fold of the taps is small
beside a layer. Drafting one token a request is a decode step of the plan: padded to a bucket, replayed as a CUDA graph.

Not run on a GPU so far: see :mod:`runtime.executors.tensorrt_executor`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.executors.base import StepBatch
from runtime.executors.head_facts import HeadFacts, head_facts, head_targets, states_given
from runtime.executors.tensorrt_plan import TensorrtPlan


class TensorrtDraftExecutor(TensorrtPlan):
    """A :class:`~runtime.executors.base.DraftExecutor` over a TensorRT plan; arguments and errors are the plan's."""

    @cached_property
    def facts(self) -> HeadFacts:
        return head_facts(self.engine.info)

    @cached_property
    def targets(self) -> npt.NDArray[np.int64] | None:
        return head_targets(self.engine.info)

    @property
    def draft_vocab_size(self) -> int:
        return self.facts.draft_vocab_size

    @property
    def hidden_size(self) -> int:
        return self.facts.hidden_size

    @property
    def tap_width(self) -> int:
        return self.facts.tap_width

    @property
    def logit_width(self) -> int:
        return self.facts.draft_vocab_size

    def execute(
        self, batch: StepBatch, *, taps: torch.Tensor | None = None, feedback: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pass whose rows all come from ``taps`` [T, m·Ht] or all from ``feedback`` [T, H].

        Returns:
            Logits float32 [L, Vd] and the states [T, H] to feed back, both on the device and valid until the next call.

        Raises:
            ValueError: the batch breaks a limit, its arrays disagree, or the states do not fit it.
            RuntimeError: TensorRT refused the step.
        """
        self.begin(batch)
        name, given = states_given(self.facts, batch.num_tokens, taps, feedback)
        if batch.num_tokens:
            self.run(batch, {name: given})
        return self.rows_of("logits", len(batch.logit_indices)), self.rows_of("states", batch.num_tokens)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "eagle3", "draft_vocab_size": self.draft_vocab_size}
