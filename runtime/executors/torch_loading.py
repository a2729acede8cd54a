"""What the executors over torch share: an engine directory opened on a device, its pools, kernels and programs.

Policy: the graph decides what is computed, the machine how; pools always have the format that the engine states.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.executors import host_kernels
from runtime.executors.base import StepBatch
from runtime.executors.batch_check import mask_of
from runtime.executors.binding import Lowered
from runtime.executors.engine_dir import GRAPH_FILE, EngineInfo, read_engine
from runtime.executors.kernels import StepIndex, TorchKernels
from runtime.executors.linears import Capability, PackedLinear, detect
from runtime.executors.lowering import Lowering
from runtime.executors.onnx_graph import Graph, coherent, load_graph
from runtime.executors.weight_check import WeightCheck, check_weights
from trtforge.formats.pools import pools as known_pools
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress, SilentProgress

_INTEGERS = {
    "input_ids": np.int64,
    "positions": np.int64,
    "query_start": np.int32,
    "sequence_lengths": np.int32,
    "block_table": np.int32,
    "logit_indices": np.int64,
}


def index_feeds(batch: StepBatch, device: str, *, tree: bool) -> dict[str, torch.Tensor]:
    """The arrays of a step as tensors on the device, and its tree mask where the graph takes one."""
    feeds = {}
    for name, dtype in _INTEGERS.items():
        tensor = torch.from_numpy(np.ascontiguousarray(getattr(batch, name), dtype=dtype))
        feeds[name] = tensor if device == "cpu" else tensor.to(device)
    if tree:
        mask = torch.from_numpy(np.ascontiguousarray(mask_of(batch), dtype=np.uint8))
        feeds["tree_mask"] = mask if device == "cpu" else mask.to(device)
    return feeds


class TorchRunner:
    """An engine directory over torch: its record, pools and kernels, and the programs that are lowered from its graph.

    Args:
        engine_dir: an engine directory of target ``torch``.
        device: ``cpu`` or a CUDA device. The CUDA path is complete but has not been executed on the
            machines this version was tested on.
        threads: CPU threads of torch and the host library; None leaves torch's setting.
        num_blocks: KV blocks to allocate instead of the engine's number.
        capability: overrides what the machine is detected to have (tests).
        host_library: False does without the host op library.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        *,
        device: str,
        threads: int | None,
        num_blocks: int | None,
        capability: Capability | None,
        host_library: bool,
    ) -> None:
        check_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        self.info: EngineInfo = read_engine(Path(engine_dir))
        self.device, self._closed = device, False
        self.num_blocks = self.info.record.kv_cache.num_blocks if num_blocks is None else num_blocks
        self.block_size, self.limits = self.info.record.kv_cache.block_size, self.info.limits
        self.capability = capability or detect(device)
        self.activation_dtype = _activation_dtype(self.capability, self.info)
        self._library = host_kernels.open_library() if device == "cpu" and host_library else None
        self._kernels = self._make_kernels()
        #: the programs of the graph by their names: they hold the weights
        self._programs: dict[str, Lowered] = {}

    def _make_kernels(self) -> TorchKernels:
        """The host library's kernels, or torch's."""
        if self._library is None:
            return TorchKernels()
        return host_kernels.HostKernels(self._library, self.activation_dtype)

    def _open(self, *, vocabulary: int, extra: Mapping[str, str] | None = None) -> Graph:
        """The engine's graph, held against engine.json, with its pools allocated (see :func:`check_interface`)."""
        graph = load_graph(self.info.directory / GRAPH_FILE)
        check_interface(graph, self.info, vocabulary=vocabulary, extra=extra)
        self._pools = allocate_pools(graph, self.info, self.num_blocks, self.device)
        self._tree = "tree_mask" in graph.inputs
        return graph

    def _lower(
        self,
        name: str,
        graph: Graph,
        *,
        exact_rows: bool,
        progress: Progress | None,
        choices: Mapping[str, bool] | None = None,
        packs: dict[tuple[str, ...], PackedLinear] | None = None,
    ) -> Lowered:
        """A program of the graph over the pools, kept under ``name``.

        Args:
            choices: inputs that have one value in this program.
            packs: packed linears of other programs of the same graph, which are shared; new ones are added.
        """
        progress = progress or SilentProgress()
        progress.start("packing weights", float(sum(c.nbytes for c in graph.constants.values())))
        lowering = Lowering(
            graph,
            self._kernels,
            self.capability,
            self.activation_dtype,
            max_rows=self.limits.max_num_tokens,
            max_positions=self.limits.max_seq_len,
            exact_rows=exact_rows,
            library=self._library,
            progress=lambda nbytes: progress.advance(float(nbytes)),
            choices=choices,
            packs=packs,
        )
        # packing is one long scalar loop a weight: threads would only wait for each other, worst on a busy machine
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode(), coherent(graph.directory):
                lowered = lowering.lower()
        finally:
            torch.set_num_threads(threads)
        for input_name, pool in self._pools.items():
            lowered.inputs[input_name].t = pool
        self._programs[name] = lowered
        return lowered

    def _feed(self, program: Lowered, feeds: Mapping[str, torch.Tensor]) -> None:
        """Hand the index arrays of a step to a program."""
        for name, tensor in feeds.items():
            program.inputs[name].t = tensor
        program.state.index = StepIndex(
            feeds["query_start"], feeds["sequence_lengths"], feeds["block_table"], feeds.get("tree_mask")
        )

    def _logits(self, program: Lowered, rows: int) -> torch.Tensor:
        """float32 [rows, V] on the CPU."""
        logits: torch.Tensor = program.outputs["logits"].value(rows)[:rows]
        return logits if self.device == "cpu" and logits.dtype == torch.float32 else logits.float().cpu()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, in order."""
        if not pairs:
            return
        flat = [n for pair in pairs for n in pair]
        if min(flat) < 0 or max(flat) >= self.num_blocks:
            raise ValueError(f"block copies {list(pairs)} leave the pool of {self.num_blocks} blocks")
        for pool in self._pools.values():
            self._kernels.copy_blocks(pool, pairs)

    def close(self) -> None:
        """Release weights and pools; on a GPU, also what torch keeps of their memory. May be repeated."""
        self._closed = True
        self._programs, self._pools = {}, {}
        if self.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def _packed(self) -> list[PackedLinear]:
        """Every packed linear once: programs of one graph share most."""
        return list({id(packed): packed for program in self._programs.values() for packed in program.linears}.values())

    def check_weights(self) -> WeightCheck:
        """Read every linear's weights back from its kernel and hold them against the stored ones."""
        return check_weights(self._packed())

    def describe(self) -> dict[str, Any]:
        """Device, kernels, every linear's stored and executed representation, bytes; JSON-able."""
        pool_bytes = sum(p.numel() * p.element_size() for p in self._pools.values())
        packed = self._packed()
        return {
            "engine": self.info.record.name,
            "device": self.device,
            "capability": self.capability.label,
            "tested": self.device == "cpu",
            "activations": str(self.activation_dtype).removeprefix("torch."),
            "kernels": self._kernels.name,
            "kv_cache": {
                "format": self.info.record.kv_cache.format,
                "num_blocks": self.num_blocks,
                "block_size": self.block_size,
                "bytes": pool_bytes,
            },
            "linears": [row for one in packed for row in linear_rows(one)],
            "bytes": {
                "packed_weights": sum(one.kernel.nbytes for one in packed),
                "kv_pools": pool_bytes,
                "buffers": sum(program.report["buffer_bytes"] for program in self._programs.values()),
            },
        }


def allocate_pools(graph: Graph, info: EngineInfo, num_blocks: int, device: str) -> dict[str, torch.Tensor]:
    """The KV pools of a graph by their names, empty.

    Raises:
        ForgeError: TF-RUN-010 they do not fit into memory, or have no block.
    """
    if num_blocks <= 0:
        raise _bad_pool(num_blocks, 0, "a pool has at least one block")
    dtype: torch.dtype = getattr(torch, known_pools()[info.record.kv_cache.format].dtype)
    pools = {}
    for name, value in graph.inputs.items():
        if not name.startswith("kv_pool_"):
            continue
        shape = [num_blocks, *[int(n) for n in value.shape[1:]]]
        try:
            # zeros: blocks are touched, and cost memory, when they are first written
            pools[name] = torch.zeros(
                shape, dtype=torch.uint8 if dtype == torch.float8_e4m3fn else dtype, device=device
            )
        except (RuntimeError, MemoryError) as error:
            size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
            raise _bad_pool(num_blocks, size, str(error).splitlines()[0]) from error
        if dtype == torch.float8_e4m3fn:
            pools[name] = pools[name].view(dtype)
    return pools


def _activation_dtype(capability: Capability, info: EngineInfo) -> torch.dtype:
    if info.record.dtype == "float32" or (capability.device == "cpu" and not capability.bf16):
        return torch.float32
    if capability.device == "cuda" and info.record.dtype == "float16":
        return torch.float16
    return torch.bfloat16


def check_device(device: str) -> None:
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


def check_interface(graph: Graph, info: EngineInfo, *, vocabulary: int, extra: Mapping[str, str] | None = None) -> None:
    """The graph's inputs and outputs against the contract and ``engine.json``.

    Args:
        vocabulary: columns of the logits.
        extra: further inputs and their element types.

    Raises:
        ForgeError: TF-RUN-013.
    """
    extra = extra or {}
    problems = []
    problems += [f"input {name} is missing" for name in _INTEGERS if name not in graph.inputs]
    pools = [name for name in graph.inputs if name.startswith("kv_pool_")]
    known = {*_INTEGERS, "tree_mask", *pools, *extra}
    problems += [
        f"input {name} is not {dtype}"
        for name, dtype in extra.items()
        if name not in graph.inputs or graph.inputs[name].dtype != dtype
    ]
    problems += [f"input {name} is unknown" for name in graph.inputs if name not in known]
    problems += [f"output {name}_out is missing" for name in pools if f"{name}_out" not in graph.outputs]
    if not pools:
        problems.append("there is no kv_pool input")
    if "logits" not in graph.outputs:
        problems.append("output logits is missing")
    elif graph.outputs["logits"].dtype != "FLOAT" or graph.outputs["logits"].shape[-1] != vocabulary:
        problems.append(f"logits are {graph.outputs['logits']}, engine.json says vocabulary {vocabulary}")
    stored = {pool.onnx: name for name, pool in known_pools().items()}
    for name in pools:
        value = graph.inputs[name]
        if (
            stored.get(value.dtype) != info.record.kv_cache.format
            or len(value.shape) != 5
            or value.shape[3] != info.record.kv_cache.block_size
        ):
            stated = f"{info.record.kv_cache.format}, block size {info.record.kv_cache.block_size}"
            problems.append(f"{name} is {value.dtype}{list(value.shape)}, engine.json says {stated}")
            break
    tapped = info.speculation.taps if info.speculation is not None and not extra else ()
    absent = [i for i in tapped if f"hidden_states_{i}" not in graph.outputs]
    problems += [f"output hidden_states_{i} is missing, which the record of speculation taps" for i in absent]
    if problems:
        raise ForgeError(
            "TF-RUN-013",
            f"graph and engine.json do not fit together: {problems[0]}",
            asked=str(info.directory),
            numbers={"problems": problems},
            why="the executor feeds the graph by these names, types and shapes",
            remedies=["build the engine again", "run `trtforge verify` on the bundle"],
        )


def linear_rows(packed: PackedLinear) -> list[dict[str, Any]]:
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
