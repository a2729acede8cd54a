"""quantize: post-training quantization, gated by the audit of what it exported (format none: a copy)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import copy_estimate, corpus_identity, plain
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, GateResult, StageResult

#: what a format's row says of it, beside what decides the bytes
_SAID_OF_IT = {"title", "summary", "sources", "native", "cpu", "measured", "not_on", "planner", "speedup_at_64"}


class QuantizeStage(Stage):
    """Keyed by the section, the format's row of the table, the calibration text's hash and a target's fused linears."""

    name = "quantize"
    needs = ("intake",)
    code_version = "1"
    tools = ("nvidia-modelopt", "torch", "transformers")

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from trtforge.formats.mixing import named_format
        from trtforge.formats.table import format_row, kv_mode

        asked = recipe.quantize
        row, kv = format_row(asked.format), kv_mode(asked.kv_cache)
        others = [named_format(text)[0] for text in asked.mixed]
        section = plain(asked)
        if others:
            section["mixed_rows"] = [plain(other, exclude=_SAID_OF_IT) for other in others]
        else:
            section.pop("mixed")
        if asked.experts == type(asked.experts)():
            section.pop("experts")  # as it was before there was such a section
        section["row"] = plain(row, exclude=_SAID_OF_IT)
        section["kv_row"] = plain(kv, exclude={"title", "sources", "why"})
        if any(one.needs_calibration for one in (row, *others)) or kv.scales == "calibrated":
            corpus = asked.calibration.corpus
            section["calibration"]["corpus"] = corpus_identity(corpus, recipe_dir, "calibration")
        else:
            section.pop("calibration")  # no text is read: changing it changes nothing
        section["allow_remote_code"] = recipe.model.allow_remote_code
        if recipe.target.one_scale:
            section["one_scale"] = recipe.build.target
        return section

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        from quantize.loading import spilled_bytes

        source, text = inputs["intake"], recipe.quantize.calibration
        if recipe.quantize.format == "none" and recipe.quantize.kv_cache == "none":
            return copy_estimate(source)
        tokens = text.samples * text.sequence_length
        return copy_estimate(source) + spilled_bytes(recipe.model.loading, source.path, tokens)

    def run(self, context: StageContext) -> StageResult:
        from quantize.audit import Expected, audit_checkpoint
        from quantize.checkpoint import quantize_checkpoint
        from quantize.experts import judge
        from quantize.export import SUMMARY_FILE, write_json
        from quantize.one_scale import share_scales
        from quantize.plan import plan_quantization, read_config
        from trtforge.ground.safetensors_header import read_headers

        source = context.inputs["intake"].path
        plan = plan_quantization(read_config(source), read_headers(source), context.recipe.quantize)
        outcome = quantize_checkpoint(
            source,
            context.out,
            section=context.recipe.quantize,
            base_dir=context.recipe_dir,
            progress=context.progress,
            allow_remote_code=context.recipe.model.allow_remote_code,
            scratch=context.scratch,
            loading=context.recipe.model.loading,
        )
        measured: dict[str, Any] = {name: outcome.pop(name) for name in ("timings", "loading") if name in outcome}
        shared = share_scales(context.out, context.recipe.target)
        if shared is not None:
            outcome["one_scale"] = shared
            write_json(context.out / SUMMARY_FILE, outcome)
        context.progress.start("auditing the export")
        report = audit_checkpoint(context.out, Expected.from_plan(plan), base=source)
        faults = "; ".join(f"{fault.code} {fault.headline}" for fault in report.findings)
        gate = GateResult(
            "audit", report.passed, float(report.count("error")), 0.0, f"of the export: {faults or 'no finding'}"
        )
        experts = outcome.get("experts")
        asked = context.recipe.quantize.experts
        gates = [gate]
        if experts and asked.gate is not None:
            passed, said = judge(experts, asked)
            gates.append(GateResult("expert_coverage", passed, experts["share_below"], asked.gate.max_below, said))
        return StageResult(
            summary={**outcome, "audit": report.to_json()},
            measurements=measured,
            gates=gates,
        )
