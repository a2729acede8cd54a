"""Quantization layer by layer: ModelOpt calibrates and exports each decoder layer as a model of its own.

While ModelOpt collects statistics its quantizers of linears hand on what they are given, so every layer sees what it
sees in the whole model. An algorithm that runs the text twice may hand on something else the second time (keys and
values pass their calibrated quantizers then): each pass has its own stream of states. A layer that is finished is a
file, with the states behind it: a run that was killed goes on at the next layer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quantize import ptq
from quantize.by_layer.parts import Part, export_part, read_part, write_checkpoint
from quantize.by_layer.pieces import Pieces, run_embedding, run_head, run_layer
from quantize.by_layer.states import LayerStates
from quantize.emulation import emulated_block_quantization
from quantize.experts import Coverage
from quantize.export import stored_dtype
from quantize.plan import LM_HEAD, QuantPlan
from quantize.quiet import quiet
from trtforge.ground.files import read_json, write_json_atomic
from trtforge.ground.hashing import hash_json
from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Quantize


@dataclass(frozen=True)
class ByLayer:
    """What one quantization needs.

    Attributes:
        batch: calibration prompts, int64 [samples, sequence]; None where no statistics are needed.
        work: a folder that survives a kill.
    """

    plan: QuantPlan
    checkpoint: Path
    config: dict[str, Any]
    batch: np.ndarray | None
    section: Quantize
    version: str
    work: Path
    report: Progress
    allow_remote_code: bool = False

    def run(self, staging: Path) -> bool:
        """Write the finished export into ``staging``; returns whether ModelOpt's block quantization was emulated.

        Raises:
            ForgeError: ``TF-QNT-060`` the model cannot be taken layer by layer, ``TF-QNT-011`` unusable scales,
                ``TF-QNT-014`` transformers does not load it.
        """
        with ptq.loading_refused(self.checkpoint), quiet():
            pieces = Pieces(
                self.checkpoint,
                dtype=self._dtype,
                device="cuda" if torch.cuda.is_available() else "cpu",
                allow_remote_code=self.allow_remote_code,
            )
        parts = self.work / "parts"
        parts.mkdir(parents=True, exist_ok=True)
        with emulated_block_quantization() as emulated, torch.no_grad():
            states = self._embedded(pieces)
            started, calibrated = time.monotonic(), 0
            for index in range(pieces.count):
                calibrated += self._layer(pieces, states, parts, index)
                gc.collect()  # ModelOpt's modules refer to each other, and would stay for a while
                left = (time.monotonic() - started) / max(calibrated, 1) * (pieces.count - index - 1)
                self.report.note(f"layer {index + 1} of {pieces.count} is there; about {left:.0f} s left")
            head = self._head(pieces, states, parts)
        self.report.start("writing the checkpoint")
        layers = [read_part(parts, _name(index), self._identity) for index in range(pieces.count)]
        made = [part for part in layers if part is not None]
        write_checkpoint(made, head, pieces, self.config, staging, self._dtype.itemsize)
        return emulated

    def experts(self) -> dict[str, Any] | None:
        """What the experts of all layers saw (:meth:`quantize.experts.Coverage.summary`), once :meth:`run` is done."""
        coverage = Coverage(self.section.experts.calibrate == "all")
        for path in sorted((self.work / "parts").glob(_experts("*")), key=lambda path: int(path.stem.split("-")[1])):
            found = read_json(path) or {}
            if found.get("identity") == self._identity:
                coverage.counts |= found["counts"]
                coverage.tokens = max(coverage.tokens, found["tokens"])
        return coverage.summary(self.section.experts)

    # --- the states -----------------------------------------------------------------------------

    @cached_property
    def _batches(self) -> list[np.ndarray]:
        """The prompts of each forward pass, as many as the whole model is given at once."""
        assert self.batch is not None
        rows = ptq.rows_a_pass(ptq.build_config(self.plan, self.version), self.batch.shape[1])
        return [self.batch[begin : begin + rows] for begin in range(0, len(self.batch), rows)]

    @property
    def _dtype(self) -> torch.dtype:
        """Of weights and states while the model is computed, as :func:`quantize.ptq.load_model` has it."""
        return stored_dtype(self.config) if torch.cuda.is_available() else torch.float32

    @cached_property
    def _identity(self) -> str:
        ids = None if self.batch is None else hash_json(self.batch.tolist())
        asked = self.section.model_dump(mode="json")
        return hash_json([asked, self.config, ids, self.version, torch.__version__])

    def _embedded(self, pieces: Pieces) -> LayerStates | None:
        """The states before the layer that is next."""
        if self.batch is None:
            return None
        batches = self._batches
        width = int(pieces.config.hidden_size)
        shapes = [(len(part), part.shape[1]) for part in batches]
        states = LayerStates(self.work / "states", self._identity, shapes, width, self._dtype)
        if states.done is None:
            self.report.start("embedding the calibration text")
            model, ids = pieces.embedding(torch.from_numpy(self.batch))
            begin = 0
            for number, part in enumerate(batches):
                states.write(number, run_embedding(model, ids[begin : begin + len(part)].to(model.device)))
                begin += len(part)
            states.commit()
        elif states.done:
            self.report.note(f"calibration goes on behind layer {states.done} of {pieces.count}")
        return states

    # --- pieces ---------------------------------------------------------------------------------

    def _layer(self, pieces: Pieces, states: LayerStates | None, parts: Path, index: int) -> bool:
        """Quantize a layer; False where a run that was killed has done so."""
        if read_part(parts, _name(index), self._identity) and (states is None or (states.done or 0) > index):
            return False
        self.report.start(f"layer {index + 1} of {pieces.count}: loading")
        with ptq.loading_refused(self.checkpoint), quiet():
            model = pieces.layer(index, pieces.read_layer(index))
        inside = tuple(name for name in self.plan.linears if name.startswith(f"{pieces.stack}.{index}."))
        plan = self._plan_of(inside, lambda name: pieces.inside(name, index))
        what = f"layer {index + 1} of {pieces.count}"
        coverage = self._calibrate(model, plan, what, states, lambda given: run_layer(model, given))
        found = {"identity": self._identity, "tokens": coverage.tokens}
        found["counts"] = {pieces.outside(name, index): counts for name, counts in coverage.counts.items()}
        write_json_atomic(parts / _experts(index), found)
        self.report.start(f"layer {index + 1} of {pieces.count}: exporting")
        wanted = f"{pieces.stack}.0"

        def renamed(name: str) -> str | None:
            return pieces.outside(name, index) if name.startswith(f"{wanted}.") else None

        export_part(model, parts, _name(index), self._identity, renamed, self.config)
        if states is not None:
            states.commit()
        return True

    def _head(self, pieces: Pieces, states: LayerStates | None, parts: Path) -> Part | None:
        """The output head where it is quantized; else it is copied as the embedding is."""
        if LM_HEAD not in self.plan.quantized:
            return None
        if (part := read_part(parts, LM_HEAD, self._identity)) is not None:
            return part
        self.report.start("the output head: loading")
        names = [name for name in pieces.outer_names() if name != pieces.embedding_name]
        with ptq.loading_refused(self.checkpoint), quiet():
            model = pieces.outer(pieces.read(names))
        plan = self._plan_of((LM_HEAD,), str)
        self._calibrate(model, plan, "the output head", states, lambda given: run_head(model, given), hand_on=False)
        self.report.start("the output head: exporting")
        mine = f"{LM_HEAD}."
        export_part(
            model, parts, LM_HEAD, self._identity, lambda n: n if f"{n}.".startswith(mine) else None, self.config
        )
        return read_part(parts, LM_HEAD, self._identity)

    def _plan_of(self, linears: tuple[str, ...], renamed: Callable[[str], str]) -> QuantPlan:
        """The plan of one piece; its output head, a stub where it is not the piece itself, stays as it is."""
        shapes = {renamed(name): self.plan.linears[name] for name in linears}
        quantized = tuple(sorted(renamed(name) for name in linears if name in self.plan.quantized))
        excluded = tuple(sorted({*shapes, LM_HEAD} - {*quantized}))
        others = {renamed(name): self.plan.others[name] for name in linears if name in self.plan.others}
        return replace(self.plan, linears=shapes, quantized=quantized, excluded=excluded, others=others)

    def _calibrate(
        self,
        model: Any,
        plan: QuantPlan,
        what: str,
        states: LayerStates | None,
        run: Callable[[torch.Tensor], torch.Tensor],
        *,
        hand_on: bool = True,
    ) -> Coverage:
        """Calibrate a piece over the states before it; with ``hand_on`` what comes out is kept, a stream a pass.

        Returns what the routers of the piece chose.
        """
        settings, ran = ptq.build_config(plan, self.version), 0
        coverage = Coverage(self.section.experts.calibrate == "all")

        def loop(_: Any) -> None:
            nonlocal ran
            assert states is not None
            stream, ran = ran, ran + 1
            batches = len(self._batches)
            self.report.start(f"{what}: calibrating {plan.title}, pass {ran}", total=batches)
            for number in range(batches):
                output = run(states.read(number, stream).to(model.device))
                if hand_on:
                    states.write(number, output, stream)
                self.report.advance()

        with quiet():
            ptq.calibrate(
                model, plan, settings, None if states is None else coverage.over(loop), stored_dtype(self.config)
            )
            while states is not None and hand_on and ran < ptq.passes(settings):
                loop(model)  # a layer without quantized linears may have been left out of a pass
        return coverage


def _name(index: int) -> str:
    return f"layer-{index:05d}"


def _experts(index: int | str) -> str:
    """The file with what the experts of a layer saw."""
    return f"experts-{index}.json"
