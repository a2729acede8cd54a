"""Runs a ``tensorrt`` engine: the steps of a scheduler on a plan.

Policy: one scheduler, one sampler and one batch format for every executor, so what the torch executor's tests prove
of the engine core holds here. What a plan needs of memory, contexts and graphs is
:class:`~runtime.executors.tensorrt_plan.TensorrtPlan`'s.

Not run on a GPU so far: the tests drive it with a stand-in for TensorRT that computes on the host through the
addresses that are bound here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from runtime.executors.base import StepBatch
from runtime.executors.tensorrt_plan import TensorrtPlan


class TensorrtExecutor(TensorrtPlan):
    """An :class:`~runtime.executors.base.Executor` over a TensorRT plan; arguments and errors are the plan's."""

    @property
    def vocab_size(self) -> int:
        return self.engine.info.record.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.engine.info.eos_token_ids

    def execute(self, batch: StepBatch) -> torch.Tensor:
        """Run one step; logits float32 [L, V] on the CPU.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree.
            RuntimeError: TensorRT refused the step.
        """
        self.begin(batch)
        if batch.num_tokens == 0:
            return torch.empty(0, self.vocab_size)
        self.run(batch)
        return self.rows_of("logits", len(batch.logit_indices)).cpu()

    def hidden_states(self, name: str, rows: int) -> torch.Tensor:
        """Rows of an extra output of the graph (``hidden_states_i``) after :meth:`execute`."""
        return self.rows_of(name, rows)

    def taps(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """The states that the engine taps for its draft, of ``rows`` of the last step: a new [R, m·Ht], on the device.

        Raises:
            ValueError: the engine taps nothing.
        """
        record = self.engine.info.speculation
        if record is None or not record.taps:
            raise ValueError("the engine taps no hidden states")
        most = self.engine.limits.max_num_tokens
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        states = [self.rows_of(f"hidden_states_{i}", most) for i in record.taps]
        return torch.cat([state.index_select(0, index.to(state.device)) for state in states], dim=1)
