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
from runtime.executors import engine_dir, host_kernels
from runtime.executors.base import ExecutorLimits, StepBatch, StepProfile
from runtime.executors.batch_check import check_batch, mask_of
from runtime.executors.engine_dir import EngineInfo, read_engine
from runtime.executors.interpreter import Interpreter
from runtime.executors.kernels import StepIndex, TorchKernels
from runtime.executors.linears import Capability, PackedLinear, detect
from runtime.executors.lowering import Lowered, Lowering
from runtime.executors.onnx_graph import Graph, coherent, load_graph
from runtime.executors.onnx_ops import OpContext
from runtime.executors.weight_check import WeightCheck, check_weights
from trtforge.errors import EnvironmentLacks, ForgeError
from trtforge.progress import Progress, SilentProgress

POOL_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
_FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_INDEX_INPUTS = ("input_ids", "positions", "query_start", "sequence_lengths", "block_table", "logit_indices")


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
        _check_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        self.info: EngineInfo = read_engine(Path(engine_dir))
        self.device = device
        self._closed = False
        self.profile: StepProfile | None = None
        self._num_blocks = self.info.num_blocks if num_blocks is None else num_blocks
        graph = load_graph(self.info.directory / "model.onnx")
        _check_interface(graph, self.info)
        self._pools = self._allocate(graph)
        shapes: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for pool in self._pools.values():
            shapes.setdefault(tuple(pool.shape), []).append(pool)
        #: layers' pools by shape: PagedKVMove takes those of one shape at once
        self._alike = list(shapes.values())
        self.capability = capability or detect(device)
        self.activation_dtype = _activation_dtype(self.capability, self.info)
        self._library = host_kernels.open_library() if device == "cpu" and host_library else None
        self._kernels = self._make_kernels()
        self._tree = "tree_mask" in graph.inputs
        self._interpreter: Interpreter | None = None
        self._lowered: Lowered | None = None
        if lowered:
            self._lowered = self._lower(graph, exact_rows, progress or SilentProgress())
        else:
            self.activation_dtype = _FLOATS[self.info.dtype]
            self._kernels = self._make_kernels()
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
        self._lowered = self._last = self._interpreter = None
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
        feeds = self._feeds(batch)
        if self._lowered is None:
            assert self._interpreter is not None
            outputs = self._interpreter.run({**feeds, **self._pools})
            return outputs["logits"].float().cpu()
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
        if self._lowered is None or name not in self._lowered.outputs:
            raise KeyError(name)
        value: torch.Tensor = self._lowered.outputs[name].value(rows)
        return value[:rows]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, in order."""
        if not pairs:
            return
        flat = [n for pair in pairs for n in pair]
        if min(flat) < 0 or max(flat) >= self._num_blocks:
            raise ValueError(f"block copies {list(pairs)} leave the pool of {self._num_blocks} blocks")
        for pool in self._pools.values():
            self._kernels.copy_blocks(pool, pairs)

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

    def _feeds(self, batch: StepBatch) -> dict[str, torch.Tensor]:
        feeds = {}
        for name in _INDEX_INPUTS:
            dtype = np.int32 if name in ("query_start", "sequence_lengths", "block_table") else np.int64
            array = np.ascontiguousarray(getattr(batch, name), dtype=dtype)
            tensor = torch.from_numpy(array)
            feeds[name] = tensor if self.device == "cpu" else tensor.to(self.device)
        if self._tree:
            mask = np.ascontiguousarray(mask_of(batch), dtype=np.uint8)
            feeds["tree_mask"] = torch.from_numpy(mask).to(self.device)
        return feeds

    # -- loading ---------------------------------------------------------------------------------------------

    def _allocate(self, graph: Graph) -> dict[str, torch.Tensor]:
        if self._num_blocks <= 0:
            raise _bad_pool(self._num_blocks, 0, "a pool has at least one block")
        dtype = POOL_DTYPES[self.info.kv_format]
        pools = {}
        for name, value in graph.inputs.items():
            if not name.startswith("kv_pool_"):
                continue
            shape = [self._num_blocks, *[int(n) for n in value.shape[1:]]]
            try:
                # zeros: blocks are touched, and cost memory, when they are first written
                pools[name] = torch.zeros(
                    shape, dtype=torch.uint8 if dtype == torch.float8_e4m3fn else dtype, device=self.device
                )
            except (RuntimeError, MemoryError) as error:
                size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
                raise _bad_pool(self._num_blocks, size, str(error).splitlines()[0]) from error
            if dtype == torch.float8_e4m3fn:
                pools[name] = pools[name].view(dtype)
        return pools

    def _make_kernels(self) -> TorchKernels:
        if self._library is None:
            return TorchKernels()
        return host_kernels.HostKernels(self._library, self.activation_dtype)

    def _lower(self, graph: Graph, exact_rows: bool, progress: Progress) -> Lowered:
        total = sum(c.nbytes for c in graph.constants.values())
        progress.start("packing weights", float(total))
        lowering = Lowering(
            graph,
            self._kernels,
            self.capability,
            self.activation_dtype,
            max_rows=self.info.limits.max_num_tokens,
            max_positions=self.info.limits.max_seq_len,
            exact_rows=exact_rows,
            library=self._library,
            progress=lambda nbytes: progress.advance(float(nbytes)),
        )
        # packing is one long scalar loop a weight: threads would only wait for each other, worst on a busy machine
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode(), coherent(graph.directory):
                lowered = lowering.lower()
        finally:
            torch.set_num_threads(threads)
        for name, pool in self._pools.items():
            lowered.inputs[name].t = pool
        return lowered

    def check_weights(self) -> WeightCheck:
        """Read every linear's weights back from its kernel and hold them against the stored ones."""
        return WeightCheck() if self._lowered is None else check_weights(self._lowered.linears)

    # -- reporting -------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Device, kernels, every linear's stored and executed representation, bytes; JSON-able."""
        pool_bytes = sum(p.numel() * p.element_size() for p in self._pools.values())
        linears = [] if self._lowered is None else [row for p in self._lowered.linears for row in _linear_rows(p)]
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


def _linear_rows(packed: PackedLinear) -> list[dict[str, Any]]:
    """One row a linear of the graph, for linears that run as one kernel call."""
    kernel = packed.kernel
    rows = []
    emulated = f", {packed.input} activations emulated" if packed.input and not kernel.quantizes_input else ""
    for source in packed.sources:
        native = source.format in kernel.executed.lower()
        rows.append(
            {
                "name": source.name,
                "shape": list(source.shape),
                "stored": source.format,
                "executed": kernel.executed + emulated,
                "native": native,
                "kernel": kernel.name,
                "fused_with": [s.name for s in packed.sources if s is not source],
                "stored_bytes": source.stored_bytes,
                "notes": packed.notes,
            }
        )
    return rows


def _activation_dtype(capability: Capability, info: EngineInfo) -> torch.dtype:
    if info.dtype == "float32" or (capability.device == "cpu" and not capability.bf16):
        return torch.float32
    if capability.device == "cuda" and info.dtype == "float16":
        return torch.float16
    return torch.bfloat16


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    try:
        asked = torch.device(device)
    except RuntimeError:
        asked = torch.device("meta")  # names nothing
    if asked.type == "cuda" and torch.cuda.is_available() and (asked.index or 0) < torch.cuda.device_count():
        return
    raise EnvironmentLacks(
        "TF-RUN-011",
        f"device {device} is not available",
        asked=device,
        numbers={"cuda_available": torch.cuda.is_available(), "torch": torch.__version__},
        why="this torch build or machine has no such device",
        remedies=["use device cpu", "install a CUDA build of torch on a machine with an NVIDIA GPU"],
    )


def _bad_pool(num_blocks: int, nbytes: int, why: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-010",
        f"KV pools of {num_blocks} blocks cannot be allocated",
        asked=f"num_blocks={num_blocks}",
        numbers={"num_blocks": num_blocks, "bytes_of_one_layer": nbytes},
        why=why,
        remedies=["give a smaller num_blocks", "build the engine with a smaller build.kv_cache.memory"],
    )


def _check_interface(graph: Graph, info: EngineInfo) -> None:
    """The graph's inputs and outputs against the contract and ``engine.json``."""
    problems = []
    problems += [f"input {name} is missing" for name in _INDEX_INPUTS if name not in graph.inputs]
    pools = [name for name in graph.inputs if name.startswith("kv_pool_")]
    known = {*_INDEX_INPUTS, "tree_mask", *pools}
    problems += [f"input {name} is unknown" for name in graph.inputs if name not in known]
    problems += [f"output {name}_out is missing" for name in pools if f"{name}_out" not in graph.outputs]
    if not pools:
        problems.append("there is no kv_pool input")
    if "logits" not in graph.outputs:
        problems.append("output logits is missing")
    elif graph.outputs["logits"].dtype != "FLOAT" or graph.outputs["logits"].shape[-1] != info.vocab_size:
        problems.append(f"logits are {graph.outputs['logits']}, engine.json says vocabulary {info.vocab_size}")
    stored = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "FLOAT8E4M3FN": "fp8"}
    for name in pools:
        value = graph.inputs[name]
        if stored.get(value.dtype) != info.kv_format or len(value.shape) != 5 or value.shape[3] != info.block_size:
            stated = f"{info.kv_format}, block size {info.block_size}"
            problems.append(f"{name} is {value.dtype}{list(value.shape)}, engine.json says {stated}")
            break
    if problems:
        raise ForgeError(
            "TF-RUN-013",
            f"graph and engine.json do not fit together: {problems[0]}",
            asked=str(info.directory),
            numbers={"problems": problems},
            why="the executor feeds the graph by these names, types and shapes",
            remedies=["build the engine again", "run `trtforge verify` on the bundle"],
        )


__all__ = ["TorchExecutor", "engine_dir"]
