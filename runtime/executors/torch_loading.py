"""What the executors over torch share: devices, number formats, pools, kernels, lowering, the check of an interface.

Policy: the graph decides what is computed, the machine how; pools always have the format that the engine states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from plugins.host.library import HostLibrary
from runtime.executors import host_kernels
from runtime.executors.base import StepBatch
from runtime.executors.batch_check import mask_of
from runtime.executors.binding import Lowered
from runtime.executors.engine_dir import EngineInfo
from runtime.executors.kernels import TorchKernels
from runtime.executors.linears import Capability, PackedLinear
from runtime.executors.lowering import Lowering
from runtime.executors.onnx_graph import Graph, coherent
from trtforge.formats.pools import pools as known_pools
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress

FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
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


def make_kernels(library: HostLibrary | None, dtype: torch.dtype) -> TorchKernels:
    """The host library's kernels, or torch's."""
    return TorchKernels() if library is None else host_kernels.HostKernels(library, dtype)


def allocate_pools(graph: Graph, info: EngineInfo, num_blocks: int, device: str) -> dict[str, torch.Tensor]:
    """The KV pools of a graph by their names, empty.

    Raises:
        ForgeError: TF-RUN-010 they do not fit into memory, or have no block.
    """
    if num_blocks <= 0:
        raise _bad_pool(num_blocks, 0, "a pool has at least one block")
    dtype: torch.dtype = getattr(torch, known_pools()[info.kv_format].dtype)
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


def copy_pool_blocks(
    kernels: TorchKernels, pools: Mapping[str, torch.Tensor], num_blocks: int, pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy whole blocks (source, destination) in every layer, in order."""
    if not pairs:
        return
    flat = [n for pair in pairs for n in pair]
    if min(flat) < 0 or max(flat) >= num_blocks:
        raise ValueError(f"block copies {list(pairs)} leave the pool of {num_blocks} blocks")
    for pool in pools.values():
        kernels.copy_blocks(pool, pairs)


def lower(
    graph: Graph,
    info: EngineInfo,
    kernels: TorchKernels,
    capability: Capability,
    dtype: torch.dtype,
    *,
    exact_rows: bool,
    library: HostLibrary | None,
    progress: Progress,
    choices: Mapping[str, bool] | None = None,
    packs: dict[tuple[str, ...], PackedLinear] | None = None,
) -> Lowered:
    """The program of a graph.

    Args:
        choices: inputs that have one value in this program.
        packs: packed linears of other programs of the same graph, which are shared; new ones are added.
    """
    total = sum(c.nbytes for c in graph.constants.values())
    progress.start("packing weights", float(total))
    lowering = Lowering(
        graph,
        kernels,
        capability,
        dtype,
        max_rows=info.limits.max_num_tokens,
        max_positions=info.limits.max_seq_len,
        exact_rows=exact_rows,
        library=library,
        progress=lambda nbytes: progress.advance(float(nbytes)),
        choices=choices,
        packs=packs,
    )
    # packing is one long scalar loop a weight: threads would only wait for each other, worst on a busy machine
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), coherent(graph.directory):
            return lowering.lower()
    finally:
        torch.set_num_threads(threads)


def activation_dtype(capability: Capability, info: EngineInfo) -> torch.dtype:
    if info.dtype == "float32" or (capability.device == "cpu" and not capability.bf16):
        return torch.float32
    if capability.device == "cuda" and info.dtype == "float16":
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
        if stored.get(value.dtype) != info.kv_format or len(value.shape) != 5 or value.shape[3] != info.block_size:
            stated = f"{info.kv_format}, block size {info.block_size}"
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
