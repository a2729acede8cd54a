"""What the recipe says about when to draft, with TensorRT-LLM's names and meaning.

Source: TensorRT-LLM's ``DecodingBaseConfig``, 1.3,
https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from trtforge.drafting.record import DraftPolicy


class Overrides:
    """Limits of drafting by batch, and the switch that ends it.

    * ``max_concurrency``: no drafts in a step of more decoding requests.
    * ``draft_len_schedule``: the length by batch: that of the smallest entry that is no smaller than the batch; 0
      above the largest.
    * ``acceptance_rate_threshold`` with ``acceptance_rate_window_size`` N: once the mean of accepted / drafted over
      the last N steps that verified drafts is lower, drafting is off for good. A tree counts by its levels.
    """

    def __init__(self, policy: DraftPolicy) -> None:
        self._policy = policy
        window = policy.acceptance_rate_window_size or 0
        self._gated = window > 0 and policy.acceptance_rate_threshold is not None
        self._shares: deque[float] = deque(maxlen=max(window, 1))
        self._drafted = self._accepted = 0
        #: drafting ended for good
        self.ended = False

    @property
    def scheduled(self) -> bool:
        """Whether lengths are the schedule's and not to be chosen."""
        return self._policy.draft_len_schedule is not None

    def length(self, running: int, most: int) -> int:
        """Most draft tokens a sequence in a step of ``running`` decoding requests; 0: none."""
        if self.ended or (self._policy.max_concurrency is not None and running > self._policy.max_concurrency):
            return 0
        if self._policy.draft_len_schedule is None:
            return most
        return next((min(length, most) for batch, length in self._policy.draft_len_schedule if running <= batch), 0)

    def verified(self, drafted: int, accepted: int) -> None:
        """Count one sequence's verification."""
        self._drafted += drafted
        self._accepted += accepted

    def step(self) -> None:
        """A step is over: its share of accepted tokens counts, if it verified any."""
        if not self._drafted:
            return
        self._shares.append(self._accepted / self._drafted)
        self._drafted = self._accepted = 0
        threshold = self._policy.acceptance_rate_threshold
        if self._gated and threshold is not None and len(self._shares) == self._shares.maxlen:
            self.ended = self.ended or sum(self._shares) / len(self._shares) < threshold

    def explain(self) -> dict[str, Any]:
        """What is set, and what it has led to."""
        return {
            "max_concurrency": self._policy.max_concurrency,
            "draft_len_schedule": None
            if self._policy.draft_len_schedule is None
            else {str(batch): length for batch, length in self._policy.draft_len_schedule},
            "acceptance_rate_threshold": self._policy.acceptance_rate_threshold,
            "acceptance_rate_window_size": self._policy.acceptance_rate_window_size,
            "acceptance_rate": round(sum(self._shares) / len(self._shares), 4) if self._shares else None,
            "ended": self.ended,
        }
