"""Runs the engine that drafts: an EAGLE-3 head over torch, or a whole small model as its target runs.

The head is lowered twice, for rows joined from taps and for rows that are fed back: each program has its own steps and
buffers and nothing to decide, and both read one set of packed weights and pools. Its blocks lie under the target's
numbers, so it takes the target's number of blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from runtime.executors.base import DraftExecutor, Executor, StepBatch
from runtime.executors.batch_check import check_batch
from runtime.executors.engine_dir import EngineInfo, read_engine
from runtime.executors.head_facts import head_facts, head_targets, states_given
from runtime.executors.linears import Capability, PackedLinear
from runtime.executors.tensorrt_engine import read_tensorrt_engine
from runtime.executors.torch_executor import TorchExecutor
from runtime.executors.torch_loading import TorchRunner, index_feeds
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress
from trtforge.targets import TARGETS

#: the passes over states that are joined from taps, and over those that are fed back
_JOINED, _FED_BACK = "joined", "fed_back"


class TorchDraftExecutor(TorchRunner):
    """A :class:`~runtime.executors.base.DraftExecutor` over torch; arguments and errors are the target's executor's.

    Args:
        engine_dir: the draft's engine directory (``engine/draft``).
        num_blocks: the target's number of blocks; None: the engine's.
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
        super().__init__(
            engine_dir,
            device=device,
            threads=threads,
            num_blocks=num_blocks,
            capability=capability,
            host_library=host_library,
        )
        self._facts = head_facts(self.info)
        self.draft_vocab_size = self._facts.draft_vocab_size
        self.hidden_size = self._facts.hidden_size
        self.tap_width = self._facts.tap_width
        self.targets = head_targets(self.info)
        number = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}[self.info.record.dtype]
        extra = {"taps": number, "feedback": number, "joined": "BOOL"}
        graph = self._open(vocabulary=self.draft_vocab_size, extra=extra)
        packs: dict[tuple[str, ...], PackedLinear] = {}
        for name, joined in ((_JOINED, True), (_FED_BACK, False)):
            choices = {"joined": joined}
            self._lower(name, graph, exact_rows=exact_rows, progress=progress, choices=choices, packs=packs)

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
        check_batch(batch, self.info.limits, self.info.record.vocab_size, tree=self._tree)
        tokens, rows = batch.num_tokens, len(batch.logit_indices)
        name, given = states_given(self._facts, tokens, taps, feedback)
        if batch.block_copies:
            self.copy_blocks(batch.block_copies)
        if tokens == 0:
            return torch.empty(0, self.draft_vocab_size), given.new_empty(0, self.hidden_size)
        program = self._programs[_JOINED if feedback is None else _FED_BACK]
        self._feed(program, index_feeds(batch, self.device, tree=self._tree))
        program.inputs[name].t = given
        program.program.run(tokens, rows)
        program.inputs[name].t = None  # the caller's memory is not held
        states: torch.Tensor = program.outputs["states"].slot.t[:tokens]
        if rows == 0:
            return torch.empty(0, self.draft_vocab_size), states
        return self._logits(program, rows), states

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "kind": "eagle3",
            "draft_vocab_size": self.draft_vocab_size,
            "programs": {name: program.report for name, program in self._programs.items()},
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
    folder, blocks = (
        Path(engine_dir) / record.draft,
        info.record.kv_cache.num_blocks if num_blocks is None else num_blocks,
    )
    compiled, head = TARGETS[info.record.target].has_plan, record.method == "eagle3"
    own = read_tensorrt_engine(folder).info if compiled else read_engine(folder)
    same = {
        "limits": (own.limits, info.limits),
        "block_size": (own.record.kv_cache.block_size, info.record.kv_cache.block_size),
        "num_blocks": (own.record.kv_cache.num_blocks, info.record.kv_cache.num_blocks),
        "vocab_size": (own.record.vocab_size, info.record.vocab_size),
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
