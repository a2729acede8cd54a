"""Runs a ``torch`` engine: loads graph and weights, owns the KV pools, executes steps.

Policy: the graph decides what is computed, the machine how. On a CPU without bfloat16 units
activations are float32 (closer to the model's meaning than its own 16-bit type, and what the
processor's kernels take); with them, and on CUDA, they are bfloat16. Pools always have the format that
the engine states. Whatever pattern matching leaves over is interpreted, and ``describe()`` names it.

Numbers that do not depend on the batch: with ``row_invariant`` in ``describe()`` true, a token's
logits are bit for bit the same whatever else is in the step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plugins.reference_trees import paged_kv_move
from runtime.executors import host_kernels
from runtime.executors.base import StepBatch, StepProfile
from runtime.executors.batch_check import check_batch
from runtime.executors.binding import Lowered
from runtime.executors.interpreter import Interpreter
from runtime.executors.linears import Capability
from runtime.executors.onnx_ops import OpContext
from runtime.executors.torch_loading import TorchRunner, index_feeds
from trtforge.ground.progress import Progress


class TorchExecutor(TorchRunner):
    """An :class:`~runtime.executors.base.Executor` over torch.

    Args:
        engine_dir, device, threads, num_blocks, capability, host_library: see :class:`TorchRunner`.
        lowered: False interprets the graph node by node in its own dtypes (slow, the reference).
        exact_rows: False lets one and two rows sum in another order than more rows do, which is faster.

    Raises:
        ForgeError: TF-RUN-001 … TF-RUN-011, TF-RUN-013, TF-RUN-014 for an engine or arguments that cannot work.
        EnvironmentLacks: TF-OPS-001 … 004 for a host library that is named but unusable.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        *,
        device: str = "cpu",
        threads: int | None = None,
        num_blocks: int | None = None,
        lowered: bool = True,
        exact_rows: bool = True,
        capability: Capability | None = None,
        host_library: bool = True,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(
            engine_dir,
            device=device,
            threads=threads,
            num_blocks=num_blocks,
            capability=capability,
            host_library=host_library,
        )
        #: V, and the tokens that end a generation by default
        self.vocab_size, self.eos_token_ids = self.info.record.vocab_size, self.info.eos_token_ids
        self.profile: StepProfile | None = None
        graph = self._open(vocabulary=self.vocab_size)
        shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for pool in self._pools.values():
            shapes.setdefault(tuple(pool.shape), []).append(pool)
        #: layers' pools by shape: PagedKVMove takes those of one shape at once
        self._alike = list(shapes.values())
        self._last: dict[str, torch.Tensor] = {}
        self._interpreter: Interpreter | None = None
        self._lowered: Lowered | None = None
        if lowered:
            self._lowered = self._lower("whole", graph, exact_rows=exact_rows, progress=progress)
        else:
            self.activation_dtype = getattr(torch, self.info.record.dtype)
            self._kernels = self._make_kernels()
            attention = host_kernels.attention_adapter(self._kernels) if self._library is not None else None
            self._interpreter = Interpreter(graph, OpContext(None, attention), device)

    @property
    def row_invariant(self) -> bool:
        """Whether a token's logits are bit for bit independent of the rest of its step."""
        if self._lowered is None or self.device != "cpu":
            return False
        return self._kernels.name == "host" and all(p.kernel.row_invariant for p in self._lowered.linears)

    def close(self) -> None:
        self._lowered = self._interpreter = None
        self._last, self._alike = {}, []
        super().close()

    # -- running ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> torch.Tensor:
        """Run one step; logits float32 [L, V] on the CPU, valid until the next call.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree.
        """
        if self._closed:
            raise RuntimeError("the executor was closed")
        check_batch(batch, self.info.limits, self.info.record.vocab_size, tree=self._tree)
        if batch.block_copies:
            self.copy_blocks(batch.block_copies)
        rows = len(batch.logit_indices)
        if batch.num_tokens == 0:
            return torch.empty(0, self.vocab_size)
        feeds = index_feeds(batch, self.device, tree=self._tree)
        if self._lowered is None:
            assert self._interpreter is not None
            self._last = self._interpreter.run({**feeds, **self._pools})
            return self._last["logits"].float().cpu()
        lowered = self._lowered
        self._feed(lowered, feeds)
        if self.profile is None:
            lowered.program.run(batch.num_tokens, rows)
        else:
            lowered.program.run_profiled(batch.num_tokens, rows, self.profile)
        if rows == 0:
            return torch.empty(0, self.vocab_size)
        return self._logits(lowered, rows)

    def hidden_states(self, name: str, rows: int) -> torch.Tensor:
        """Rows of an extra output of the graph (``hidden_states_i``) after :meth:`execute`."""
        return self._output(name)[:rows]

    def taps(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """The states that the engine taps for its draft, of ``rows`` of the last step: a new [R, m·Ht], on the device.

        Raises:
            ValueError: the engine taps nothing.
        """
        record = self.info.speculation
        if record is None or not record.taps:
            raise ValueError("the engine taps no hidden states")
        index = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.device)
        states = [self._output(f"hidden_states_{i}").index_select(0, index) for i in record.taps]
        return states[0] if len(states) == 1 else torch.cat(states, dim=1)

    def _output(self, name: str) -> torch.Tensor:
        """An output of the last step, with at least its rows."""
        if self._lowered is None:
            return self._last[name]
        return self._lowered.outputs[name].slot.t

    def move_rows(
        self,
        block_table: npt.NDArray[np.int32],
        base_positions: npt.NDArray[np.int32],
        path: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
    ) -> None:
        """Move the rows of accepted tree nodes together: see :meth:`Executor.move_rows`."""
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in (block_table, base_positions, path, lengths)]
        for pools in self._alike:
            if self._library is not None:
                self._library.paged_kv_move(pools, *tensors)
            else:
                paged_kv_move(pools, *tensors)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "host_library": getattr(self._kernels, "info", None),
            "threads": torch.get_num_threads(),
            "row_invariant": self.row_invariant,
            "program": {"interpreted": "all"} if self._lowered is None else self._lowered.report,
        }
