"""Runs a ``torch`` engine: loads graph and weights, owns the KV pools, executes steps.

Policy: the graph decides what is computed, the machine how. On a CPU without bfloat16 units
activations are float32 (closer to the model's meaning than its own 16-bit type, and what the
processor's kernels take); with them, and on CUDA, they are bfloat16. Pools always have the format that
the engine states. Whatever pattern matching leaves over is interpreted, and ``describe()`` names it.

Numbers that do not depend on the batch: with ``row_invariant`` in ``describe()`` true, a token's
logits are bit for bit the same whatever else is in the step.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from plugins.host.library import load_library
from plugins.reference_trees import paged_kv_move
from runtime.executors import host_kernels
from runtime.executors.base import ExecutorLimits, StepBatch, StepProfile
from runtime.executors.batch_check import check_batch
from runtime.executors.binding import Lowered
from runtime.executors.engine_dir import EngineInfo, read_engine
from runtime.executors.interpreter import Interpreter
from runtime.executors.kernels import StepIndex
from runtime.executors.linears import Capability, detect
from runtime.executors.onnx_graph import load_graph
from runtime.executors.onnx_ops import OpContext
from runtime.executors.torch_loading import (
    FLOATS,
    activation_dtype,
    allocate_pools,
    check_device,
    check_interface,
    copy_pool_blocks,
    index_feeds,
    linear_rows,
    lower,
    make_kernels,
)
from runtime.executors.weight_check import WeightCheck, check_weights
from trtforge.ground.progress import Progress, SilentProgress


class TorchExecutor:
    """An :class:`~runtime.executors.base.Executor` over torch.

    Args:
        engine_dir: an engine directory of target ``torch``.
        device: ``cpu`` or a CUDA device. The CUDA path is complete but has not been executed on the
            machines this version was tested on.
        threads: CPU threads of torch and the host library; None leaves torch's setting.
        num_blocks: KV blocks to allocate instead of the engine's number.
        lowered: False interprets the graph node by node in its own dtypes (slow, the reference).
        exact_rows: False lets one and two rows sum in another order than more rows do, which is faster.
        capability: overrides what the machine is detected to have (tests).
        host_library: False does without the host op library.

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
        check_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        self.info: EngineInfo = read_engine(Path(engine_dir))
        self.device = device
        self._closed = False
        self.profile: StepProfile | None = None
        self._num_blocks = self.info.num_blocks if num_blocks is None else num_blocks
        graph = load_graph(self.info.directory / "model.onnx")
        check_interface(graph, self.info, vocabulary=self.info.vocab_size)
        self._pools = allocate_pools(graph, self.info, self._num_blocks, device)
        shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for pool in self._pools.values():
            shapes.setdefault(tuple(pool.shape), []).append(pool)
        #: layers' pools by shape: PagedKVMove takes those of one shape at once
        self._alike = list(shapes.values())
        self.capability = capability or detect(device)
        self.activation_dtype = activation_dtype(self.capability, self.info)
        self._library = host_kernels.open_library() if device == "cpu" and host_library else None
        self._kernels = make_kernels(self._library, self.activation_dtype)
        self._tree = "tree_mask" in graph.inputs
        self._last: dict[str, torch.Tensor] = {}
        self._interpreter: Interpreter | None = None
        self._lowered: Lowered | None = None
        if lowered:
            self._lowered = lower(
                graph,
                self.info,
                self._kernels,
                self.capability,
                self.activation_dtype,
                exact_rows=exact_rows,
                library=self._library,
                progress=progress or SilentProgress(),
            )
            for name, pool in self._pools.items():
                self._lowered.inputs[name].t = pool
        else:
            self.activation_dtype = FLOATS[self.info.dtype]
            self._kernels = make_kernels(self._library, self.activation_dtype)
            attention = host_kernels.attention_adapter(self._kernels) if self._library is not None else None
            self._interpreter = Interpreter(graph, OpContext(None, attention), device)

    # -- what a scheduler reads ------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """N, blocks of each pool."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """S, slots in a block."""
        return self.info.block_size

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.info.vocab_size

    @property
    def limits(self) -> ExecutorLimits:
        """The engine's limits."""
        return self.info.limits

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation by default."""
        return self.info.eos_token_ids

    @property
    def row_invariant(self) -> bool:
        """Whether a token's logits are bit for bit independent of the rest of its step."""
        if self._lowered is None or self.device != "cpu":
            return False
        return self._kernels.name == "host" and all(p.kernel.row_invariant for p in self._lowered.linears)

    def close(self) -> None:
        """Release weights and pools; on a GPU, also what torch keeps of their memory. May be repeated."""
        self._closed = True
        self._lowered = self._interpreter = None
        self._last = {}
        self._pools, self._alike = {}, []
        if self.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    # -- running ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> torch.Tensor:
        """Run one step; logits float32 [L, V] on the CPU, valid until the next call.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree.
        """
        if self._closed:
            raise RuntimeError("the executor was closed")
        check_batch(batch, self.info.limits, self.info.vocab_size, tree=self._tree)
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
        for name, tensor in feeds.items():
            lowered.inputs[name].t = tensor
        lowered.state.index = StepIndex(
            feeds["query_start"], feeds["sequence_lengths"], feeds["block_table"], feeds.get("tree_mask")
        )
        if self.profile is None:
            lowered.program.run(batch.num_tokens, rows)
        else:
            lowered.program.run_profiled(batch.num_tokens, rows, self.profile)
        if rows == 0:
            return torch.empty(0, self.vocab_size)
        logits: torch.Tensor = lowered.outputs["logits"].value(rows)[:rows]
        return logits if self.device == "cpu" and logits.dtype == torch.float32 else logits.float().cpu()

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
        value: torch.Tensor = self._lowered.outputs[name].slot.t
        return value

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, in order."""
        copy_pool_blocks(self._kernels, self._pools, self._num_blocks, pairs)

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
                load_library().paged_kv_move(pools, *tensors)
            else:
                paged_kv_move(pools, *tensors)

    def check_weights(self) -> WeightCheck:
        """Read every linear's weights back from its kernel and hold them against the stored ones."""
        return WeightCheck() if self._lowered is None else check_weights(self._lowered.linears)

    # -- reporting -------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Device, kernels, every linear's stored and executed representation, bytes; JSON-able."""
        pool_bytes = sum(p.numel() * p.element_size() for p in self._pools.values())
        linears = [] if self._lowered is None else [row for p in self._lowered.linears for row in linear_rows(p)]
        packed = 0 if self._lowered is None else sum(p.kernel.nbytes for p in self._lowered.linears)
        return {
            "engine": self.info.name,
            "device": self.device,
            "capability": self.capability.label,
            "tested": self.device == "cpu",
            "activations": str(self.activation_dtype).removeprefix("torch."),
            "kernels": self._kernels.name,
            "host_library": getattr(self._kernels, "info", None),
            "threads": torch.get_num_threads(),
            "row_invariant": self.row_invariant,
            "kv_cache": {
                "format": self.info.kv_format,
                "num_blocks": self._num_blocks,
                "block_size": self.info.block_size,
                "bytes": pool_bytes,
            },
            "program": {"interpreted": "all"} if self._lowered is None else self._lowered.report,
            "linears": linears,
            "bytes": {
                "packed_weights": packed,
                "kv_pools": pool_bytes,
                "buffers": 0 if self._lowered is None else self._lowered.report["buffer_bytes"],
            },
        }
