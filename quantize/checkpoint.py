"""Post-training quantization with ModelOpt: checkpoint directory in, quantized checkpoint directory out.

Policy: everything that headers can refuse is refused first (:mod:`quantize.plan`); then the calibration text; then
memory, which decides whether the model is loaded whole or taken layer by layer (:mod:`quantize.loading`); then a model
is loaded. Weights that stay unquantized go back to the checkpoint's dtype. The same inputs give the same bytes, in
either mode: no time, path or host name is written, timings are returned only. Nothing appears in ``out`` until the
whole export is finished, so an interrupt leaves it as it was.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantize import ptq
from quantize.awq_search import AwqSearch
from quantize.export import SUMMARY_FILE, collect_export, copy_checkpoint, move_export, write_json
from quantize.loading import choose, told
from quantize.plan import QuantPlan, plan_quantization, read_config
from quantize.quiet import Audible, quiet
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.ground.safetensors_header import read_headers
from trtforge.models.loading import Loading, Mode
from trtforge.recipe.schema import Quantize


def quantize_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    section: Quantize,
    base_dir: Path,
    progress: Progress | None = None,
    allow_remote_code: bool = False,
    scratch: Path | None = None,
    loading: Loading = "auto",
) -> dict[str, Any]:
    """Quantize ``checkpoint`` into the existing or new directory ``out``.

    Args:
        checkpoint: an unquantized Hugging Face checkpoint directory (safetensors, ``tokenizer.json``).
        out: gets the exported weights, ``config.json``, ``hf_quant_config.json``, ``quantize.json`` and
            the checkpoint's tokenizer, chat template and generation config.
        section: the recipe's ``quantize`` section.
        base_dir: the recipe's folder (``file:`` corpora).
        progress: told once a calibration sample, or once a batch of each layer.
        allow_remote_code: let transformers run Python files of the checkpoint.
        scratch: a folder of this very work that survives a kill; AWQ's search, or the layers, go on from there.
        loading: the whole model at once, or layer by layer; the files are the same.

    Returns:
        the content of ``quantize.json`` plus what is stored nowhere: ``timings`` (seconds by step) and ``loading`` (the
        mode), where something was quantized.

    Raises:
        ForgeError: see :func:`quantize.plan.plan_quantization` and :mod:`quantize.corpora`;
            ``TF-QNT-011`` calibration gave unusable scales, ``TF-QNT-012`` too little memory,
            ``TF-QNT-013`` a quantization package is missing, ``TF-QNT-014`` the model does not load,
            ``TF-QNT-060`` it cannot be taken layer by layer.
    """
    report = Audible(progress or SilentProgress())
    checkpoint, out = Path(checkpoint), Path(out)
    config, headers = read_config(checkpoint), read_headers(checkpoint)
    plan = plan_quantization(config, headers, section)
    for pattern in plan.idle_patterns:
        report.note(f"quantize.exclude: {pattern} matches no linear of this model")
    out.mkdir(parents=True, exist_ok=True)
    timings: dict[str, float] = {}
    summary: dict[str, Any] = {
        "format": plan.row.name,
        "kv_cache": plan.kv.name,
        "group_size": plan.group,
        "exclude": list(section.exclude),
        "scope": section.scope,
        "quantized_linears": len(plan.quantized),
        "mixed": {text: list(names) for text, names in plan.mixed.items()},
        "excluded_linears": list(plan.excluded) if plan.row.weight is not None else [],
        "tied_embeddings": plan.tied,
        "emulated": [],
        "calibration": None,
    }
    mode: Mode | None = None
    if plan.does_nothing:
        copy_checkpoint(checkpoint, out)
    else:
        batch = ptq.calibration_batch_of(plan, section, config, checkpoint, base_dir, summary)
        job = _Job(plan, checkpoint, config, batch, section, report, allow_remote_code, summary, timings)
        staging = out / ".exporting"
        try:
            mode = job.run(staging, loading, scratch)
            move_export(staging, checkpoint, out)
        finally:
            # also on KeyboardInterrupt: a half-written export must not look like one
            shutil.rmtree(staging, ignore_errors=True)
    write_json(out / SUMMARY_FILE, summary)
    return {**summary, "timings": timings, **({} if mode is None else {"loading": mode})}


@dataclass(frozen=True)
class _Job:
    """One quantization: what it is made of, and what is said of it."""

    plan: QuantPlan
    checkpoint: Path
    config: dict[str, Any]
    batch: np.ndarray | None
    section: Quantize
    report: Progress
    allow_remote_code: bool
    summary: dict[str, Any] = field(repr=False)
    timings: dict[str, float] = field(repr=False)

    def run(self, staging: Path, loading: Loading, scratch: Path | None) -> Mode:
        """Write the finished export into ``staging``; returns how the model was brought into memory."""
        self.report.start("loading ModelOpt")
        with ptq.timed(self.timings, "import"), quiet():
            ptq.import_stack()
        self.summary["modelopt"] = importlib.metadata.version("nvidia-modelopt")
        mode = choose(loading, self.checkpoint, on_gpu=True)
        self.report.note(told(mode))
        if mode == "whole":
            self._whole(staging, None if scratch is None else AwqSearch(scratch))
            return mode
        with contextlib.ExitStack() as stack:
            if scratch is None:
                # beside the export, not among other temporary files, which are often kept in memory
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".layers-", dir=staging.parent)))
            self._by_layer(staging, scratch / "layers")
        return mode

    def _whole(self, staging: Path, search: AwqSearch | None) -> None:
        model = ptq.calibrated_model(
            self.plan,
            self.checkpoint,
            self.config,
            self.batch,
            self.section,
            self.report,
            self.summary,
            self.timings,
            search=search,
            allow_remote_code=self.allow_remote_code,
        )
        import modelopt.torch.export as mte
        import torch

        from quantize.emulation import emulated_block_quantization
        from quantize.fused_experts import fused_experts_exported

        with emulated_block_quantization(), torch.no_grad():
            self.report.start("exporting")
            with ptq.timed(self.timings, "export"), fused_experts_exported(), quiet():
                mte.export_hf_checkpoint(model, export_dir=staging)
        self.report.start("finishing the export")
        collect_export(staging, self.config)

    def _by_layer(self, staging: Path, work: Path) -> None:
        from quantize.by_layer.calibrate import ByLayer

        layers = ByLayer(
            self.plan,
            self.checkpoint,
            self.config,
            self.batch,
            self.section,
            self.summary["modelopt"],
            work,
            self.report,
            self.allow_remote_code,
        )
        with ptq.timed(self.timings, "layers"):
            emulated = layers.run(staging)
        self.summary["experts"] = layers.experts()
        if emulated:
            self.summary["emulated"] = ptq.emulated_arithmetic(self.plan)
