"""Runs the engine that drafts: an EAGLE-3 head over torch, or a whole small model as its target runs.

The head is lowered twice, for rows joined from taps and for rows that are fed back: each program has its own steps and
buffers and nothing to decide, and both read one set of packed weights and pools. Its blocks lie under the target's
numbers, so it takes the target's number of blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from runtime.executors import host_kernels
from runtime.executors.base import DraftExecutor, Executor, ExecutorLimits, StepBatch
from runtime.executors.batch_check import check_batch
from runtime.executors.binding import Lowered
from runtime.executors.engine_dir import EngineInfo, read_engine
from runtime.executors.head_facts import head_facts, head_targets, states_given
from runtime.executors.kernels import StepIndex
from runtime.executors.linears import Capability, PackedLinear, detect
from runtime.executors.onnx_graph import load_graph
from runtime.executors.tensorrt_engine import read_tensorrt_engine
from runtime.executors.torch_executor import TorchExecutor
from runtime.executors.torch_loading import (
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
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.targets import TARGETS

_FLOAT_NAMES = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}


class TorchDraftExecutor:
    """A :class:`~runtime.executors.base.DraftExecutor` over torch.

    Args:
        engine_dir: the draft's engine directory (``engine/draft``).
        device, threads, exact_rows, capability, host_library: as the target's executor takes them.
        num_blocks: the target's number of blocks; None: the engine's.

    Raises:
        ForgeError: TF-RUN-001 … TF-RUN-014 as the target's executor.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        *,
        device: str = "cpu",
        threads: int | None = None,
        num_blocks: int | None = None,
        exact_rows: bool = True,
        capability: Capability | None = None,
        host_library: bool = True,
        progress: Progress | None = None,
    ) -> None:
        check_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        self.info: EngineInfo = read_engine(Path(engine_dir))
        self._facts = head_facts(self.info)
        self.draft_vocab_size = self._facts.draft_vocab_size
        self.hidden_size = self._facts.hidden_size
        self.tap_width = self._facts.tap_width
        self.targets = head_targets(self.info)
        self.device = device
        self._num_blocks = self.info.num_blocks if num_blocks is None else num_blocks
        self._closed = False
        graph = load_graph(self.info.directory / "model.onnx")
        number = _FLOAT_NAMES[self.info.dtype]
        extra = {"taps": number, "feedback": number, "joined": "BOOL"}
        check_interface(graph, self.info, vocabulary=self.draft_vocab_size, extra=extra)
        self._pools = allocate_pools(graph, self.info, self._num_blocks, device)
        self.capability = capability or detect(device)
        self.activation_dtype = activation_dtype(self.capability, self.info)
        library = host_kernels.open_library() if device == "cpu" and host_library else None
        self._kernels = make_kernels(library, self.activation_dtype)
        self._tree = "tree_mask" in graph.inputs
        packs: dict[tuple[str, ...], PackedLinear] = {}
        self._programs: dict[bool, Lowered] = {}
        for joined in (True, False):
            program = lower(
                graph,
                self.info,
                self._kernels,
                self.capability,
                self.activation_dtype,
                exact_rows=exact_rows,
                library=library,
                progress=progress or SilentProgress(),
                choices={"joined": joined},
                packs=packs,
            )
            for name, pool in self._pools.items():
                program.inputs[name].t = pool
            self._programs[joined] = program

    @property
    def num_blocks(self) -> int:
        """N, blocks of each pool."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """S, slots in a block."""
        return self.info.block_size

    @property
    def limits(self) -> ExecutorLimits:
        """The engine's limits, which are the target's."""
        return self.info.limits

    @torch.inference_mode()
    def execute(
        self, batch: StepBatch, *, taps: torch.Tensor | None = None, feedback: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one pass whose rows all come from ``taps`` [T, m·Ht] or all from ``feedback`` [T, H].

        Returns:
            Logits float32 [L, Vd] on the CPU, and the states [T, H] to feed back, on the device in the type of
            activations; both valid until the next call.

        Raises:
            ValueError: the batch breaks a limit, its arrays disagree, or the states do not fit it.
        """
        if self._closed:
            raise RuntimeError("the draft executor was closed")
        check_batch(batch, self.info.limits, self.info.vocab_size, tree=self._tree)
        tokens, rows = batch.num_tokens, len(batch.logit_indices)
        name, given = states_given(self._facts, tokens, taps, feedback)
        if batch.block_copies:
            self.copy_blocks(batch.block_copies)
        if tokens == 0:
            return torch.empty(0, self.draft_vocab_size), given.new_empty(0, self.hidden_size)
        program = self._programs[feedback is None]
        feeds = index_feeds(batch, self.device, tree=self._tree)
        for key, tensor in feeds.items():
            program.inputs[key].t = tensor
        program.inputs[name].t = given
        program.state.index = StepIndex(
            feeds["query_start"], feeds["sequence_lengths"], feeds["block_table"], feeds.get("tree_mask")
        )
        program.program.run(tokens, rows)
        program.inputs[name].t = None  # the caller's memory is not held
        states: torch.Tensor = program.outputs["states"].slot.t[:tokens]
        if rows == 0:
            return torch.empty(0, self.draft_vocab_size), states
        logits: torch.Tensor = program.outputs["logits"].value(rows)[:rows]
        return logits if self.device == "cpu" and logits.dtype == torch.float32 else logits.float().cpu(), states

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, in order."""
        copy_pool_blocks(self._kernels, self._pools, self._num_blocks, pairs)

    def close(self) -> None:
        """Release weights and pools. May be repeated."""
        self._closed = True
        self._programs, self._pools = {}, {}
        if self.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def check_weights(self) -> WeightCheck:
        """Read every linear's weights back from its kernel and hold them against the stored ones."""
        return check_weights(list(self._packed()))

    def _packed(self) -> list[PackedLinear]:
        """Every packed linear once: the programs share most."""
        found = {id(packed): packed for program in self._programs.values() for packed in program.linears}
        return list(found.values())

    def describe(self) -> dict[str, Any]:
        """Device, kernels, linears, programs and bytes; JSON-able."""
        pool_bytes = sum(p.numel() * p.element_size() for p in self._pools.values())
        return {
            "engine": self.info.name,
            "kind": "eagle3",
            "device": self.device,
            "capability": self.capability.label,
            "tested": self.device == "cpu",
            "activations": str(self.activation_dtype).removeprefix("torch."),
            "kernels": self._kernels.name,
            "draft_vocab_size": self.draft_vocab_size,
            "kv_cache": {
                "format": self.info.kv_format,
                "num_blocks": self._num_blocks,
                "block_size": self.info.block_size,
                "bytes": pool_bytes,
            },
            "programs": {
                "joined" if joined else "fed_back": program.report for joined, program in self._programs.items()
            },
            "linears": [row for packed in self._packed() for row in linear_rows(packed)],
            "bytes": {
                "packed_weights": sum(packed.kernel.nbytes for packed in self._packed()),
                "kv_pools": pool_bytes,
                "buffers": sum(program.report["buffer_bytes"] for program in self._programs.values()),
            },
        }


def open_draft(
    engine_dir: Path,
    info: EngineInfo,
    *,
    device: str = "cpu",
    threads: int | None = None,
    num_blocks: int | None = None,
    progress: Progress | None = None,
) -> DraftExecutor | Executor:
    """The executor of the draft that the engine in ``engine_dir`` carries: a head's, or a whole model's.

    Args:
        info: the target's record.
        num_blocks: the target's number of blocks, which the draft's pools have too; None: the engine's.

    Raises:
        ForgeError: TF-RUN-015 the engine carries no draft, or one that does not fit it; as the executors.
        EnvironmentLacks: as the executors.
    """
    record = info.speculation
    if record is None or record.draft is None:
        raise _no_draft(engine_dir, "its record of speculation names none")
    folder, blocks = Path(engine_dir) / record.draft, info.num_blocks if num_blocks is None else num_blocks
    compiled, head = TARGETS[info.record.target].has_plan, record.method == "eagle3"
    own = read_tensorrt_engine(folder).info if compiled else read_engine(folder)
    same = {
        "limits": (own.limits, info.limits),
        "block_size": (own.block_size, info.block_size),
        "num_blocks": (own.num_blocks, info.num_blocks),
        "vocab_size": (own.vocab_size, info.vocab_size),
    }
    wrong = [name for name, (one, other) in same.items() if one != other]
    if wrong:
        raise _no_draft(engine_dir, f"the draft's {', '.join(wrong)} are not the engine's")
    if compiled:
        from runtime.executors.tensorrt_draft import TensorrtDraftExecutor
        from runtime.executors.tensorrt_executor import TensorrtExecutor

        gpu = "cuda" if device == "cpu" else device
        return (TensorrtDraftExecutor if head else TensorrtExecutor).load(folder, device=gpu, num_blocks=blocks)
    settings: dict[str, Any] = {"device": device, "threads": threads, "num_blocks": blocks, "progress": progress}
    return TorchDraftExecutor(folder, **settings) if head else TorchExecutor(folder, **settings)


def _no_draft(engine_dir: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-015",
        "the engine carries no draft that can run beside it",
        asked=str(engine_dir),
        why=why,
        remedies=[
            "build the engine again with the recipe's speculation section",
            "run `trtforge verify` on the bundle",
        ],
    )
