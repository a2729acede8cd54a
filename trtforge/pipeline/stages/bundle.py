"""bundle: everything that a deployment needs and the evidence that it is right, in one directory.

Layout::

    engine/           the engine directory
    repository/       the Triton model repository; its models find ../../engine
    launch/           for TensorRT-LLM: scripts that start the servers, one a way of starting them
    evidence/         deterministic: perplexity, generation, parity, audit, gates, speculation; measured: smoke,
                      health, bench, speculation-speed; not_run.json: stages that the target leaves out, and
                      gates that nobody has looked at
    report.html|md|json
    recipe.yaml       the recipe after inheritance, overrides and defaults

Policy: the bundle's identity (``content_hash``) covers what is deterministic: engine, repository, recipe
and the quality evidence. What was measured (``evidence/smoke.json``, ``health.json``, ``bench.json`` and the
report, which shows them) is hashed and verified like every file, but another measurement does not make
another bundle: it refreshes this one. So a run that was killed anywhere and run again ends with the
same identity as an undisturbed one. Every copied file is held against the manifest that it comes from:
the bundle's own manifest must not seal damage of a cached artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.hashing import hash_file
from trtforge.ground.redaction import redact_value
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages import baseline, bench, evaluate, parity, scoring, smoke, speculation
from trtforge.pipeline.stages.common import copy_estimate, plain, read_json, size_of, weight_bytes, write_json
from trtforge.pipeline.stages.repository import REPOSITORY_DIR
from trtforge.pipeline.stages.targets import left_out, not_run
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.export import copy_artifact, copy_artifact_file

if TYPE_CHECKING:
    from trtforge.tables import StackRow

ENGINE_DIR = "engine"
LAUNCH_DIR = "launch"
EVIDENCE_DIR = "evidence"
RECIPE_FILE = "recipe.yaml"
#: Python versions that the repository's code runs on (requires-python of this distribution)
PYTHON_RULE = ">=3.11,<3.13"
MEASURED = (
    f"{EVIDENCE_DIR}/smoke.json",
    f"{EVIDENCE_DIR}/{smoke.HEALTH_FILE}",
    f"{EVIDENCE_DIR}/bench.json",
    f"{EVIDENCE_DIR}/{speculation.SPEED_FILE}",
    f"{ENGINE_DIR}/build.log",
    "report.*",
)
#: figures of the stage evaluate that the bundle's own summary repeats
QUALITY = ("divergence", "noise", "suite", "custom", "long_context", "layers", "harness")
TASKS_FILE, NEEDLES_FILE = f"samples/{scoring.TASKS}.jsonl", f"samples/{scoring.NEEDLES}.jsonl"
#: files of stages that only some recipes ask for, and the recording, which a model has that answers with tokens
OPTIONAL = (TASKS_FILE, NEEDLES_FILE, smoke.HEALTH_FILE)
#: (stage, its file, name below evidence/)
EVIDENCE = (
    (baseline.BaselineStage.name, scoring.PERPLEXITY_FILE, "perplexity-baseline.json"),
    (baseline.BaselineStage.name, scoring.GENERATION_FILE, "generation-baseline.json"),
    (evaluate.EvaluateStage.name, scoring.PERPLEXITY_FILE, "perplexity-quantized.json"),
    (evaluate.EvaluateStage.name, scoring.GENERATION_FILE, "generation-quantized.json"),
    (evaluate.EvaluateStage.name, evaluate.INCREASE_FILE, "perplexity.json"),
    (baseline.BaselineStage.name, scoring.NLL_FILE, "nll-baseline.npy"),
    (evaluate.EvaluateStage.name, scoring.NLL_FILE, "nll-quantized.npy"),
    (baseline.BaselineStage.name, TASKS_FILE, "tasks-baseline.jsonl"),
    (evaluate.EvaluateStage.name, TASKS_FILE, "tasks-quantized.jsonl"),
    (baseline.BaselineStage.name, NEEDLES_FILE, "needles-baseline.jsonl"),
    (evaluate.EvaluateStage.name, NEEDLES_FILE, "needles-quantized.jsonl"),
    (parity.ParityStage.name, parity.PARITY_FILE, "parity.json"),
    (speculation.SpeculationStage.name, speculation.SPECULATION_FILE, speculation.SPECULATION_FILE),
    (speculation.SpeculationStage.name, speculation.SPEED_FILE, speculation.SPEED_FILE),
    (smoke.SmokeStage.name, smoke.SMOKE_FILE, "smoke.json"),
    (smoke.SmokeStage.name, smoke.HEALTH_FILE, smoke.HEALTH_FILE),
    (bench.BenchStage.name, bench.BENCH_FILE, "bench.json"),
)


class BundleStage(Stage):
    """Copies, writes the report, stamps."""

    name = "bundle"
    needs = (
        "intake",
        "baseline",
        "quantize",
        "evaluate",
        "build",
        "parity",
        "speculation",
        "repository",
        "smoke",
        "bench",
    )
    code_version = "10"
    carries_measurements = True

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {"recipe": plain(recipe)}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs["build"], inputs["repository"])

    def run(self, context: StageContext) -> StageResult:
        from evals.report import write_report
        from trtforge.pipeline.stages.bundle_report import build_report

        inputs, out = context.inputs, context.out
        context.progress.start("copying engine and repository", float(size_of(inputs["build"])))
        copy_artifact(inputs["build"], out / ENGINE_DIR, context.progress.advance)
        evidence = out / EVIDENCE_DIR
        evidence.mkdir()
        missing = {name: reason for name, artifact in inputs.items() if (reason := not_run(artifact)) is not None}
        for stage, file, name in EVIDENCE:
            if stage in inputs and stage not in missing and _holds(inputs[stage], file):
                copy_artifact_file(inputs[stage], file, evidence / name)
        if "repository" not in missing:
            copy_artifact(inputs["repository"], out / "repository", context.progress.advance, below=REPOSITORY_DIR)
        if context.recipe.target.tensorrt_llm:
            from launcher.plans import plan
            from launcher.scripts import write_scripts

            write_scripts(plan(context.recipe), out / LAUNCH_DIR)
        if missing:
            write_json(evidence / "not_run.json", missing)
        write_json(evidence / "audit.json", inputs["quantize"].summary["audit"])
        write_json(evidence / "provenance.json", provenance(inputs))
        write_recipe(context.recipe, out / RECIPE_FILE)
        context.progress.start("writing the report")
        write_report(build_report(context), out)
        stamps = make_stamps(context, read_json(out / ENGINE_DIR / "engine.json"))
        return StageResult(
            summary={**summarize(inputs), "waived": dict(sorted(context.recipe.waive.items()))},
            measurements={
                name: inputs[name].manifest.get("measurements", {})
                for name in ("bench", "smoke", "speculation")
                if name in inputs
            },
            measured=MEASURED,
            stamps=stamps,
            handed_out=True,
        )


def _holds(artifact: Artifact, file: str) -> bool:
    """Whether a stage made a file that is not always there; every other one must be."""
    return file not in OPTIONAL or any(entry["path"] == file for entry in artifact.manifest.get("files", ()))


def provenance(inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """Per stage its identity and tools: what a reader needs to make the same bundle again. No run facts."""
    return {
        name: {
            "key": artifact.key,
            "content_hash": artifact.manifest["content_hash"],
            "code_version": artifact.manifest["ingredients"]["code_version"],
            "tools": artifact.manifest["tools"],
        }
        for name, artifact in inputs.items()
    }


def write_recipe(recipe: Recipe, path: Path) -> None:
    """The resolved recipe as YAML that loads back to the same recipe, but for secrets in its texts."""
    import yaml

    path.write_text(yaml.safe_dump(redact_value(plain(recipe)), sort_keys=False, allow_unicode=True), encoding="utf-8")


def make_stamps(context: StageContext, engine: Mapping[str, Any]) -> dict[str, Any]:
    """What a machine must match; see :mod:`trtforge.store.stamps` for how each is checked."""
    from trtforge.machine.processor import CPU_CAPABILITIES
    from trtforge.tables import stack_table

    recipe = context.recipe
    table = stack_table()
    row = table.row(recipe.stack) if recipe.stack else table.newest(recipe.build.target)
    planned_for = engine.get("planned_for")
    served = left_out(recipe, "repository") is None
    compiled = engine.get("tensorrt", {})
    return {
        "target": engine["target"],
        "compiled": engine.get("compiled", True),
        "stack": row.name if row else None,
        "serves_with": _serves_with(row, compiled) if row else [],
        "planned_for": planned_for,
        "isa": sorted(dict(CPU_CAPABILITIES).get(str(planned_for), frozenset())),
        "gpu_architectures": [compiled["gpu_architecture"]] if compiled else list(recipe.build.architectures),
        "plugin_abi": compiled["plugins"]["abi"] if compiled else None,
        "host_abi": engine.get("host_abi"),
        "ops_version": engine.get("ops_version"),
        "layout": recipe.triton.layout if served else None,
        "triton": recipe.triton.version or (row.triton if row else None),
        "numpy": row.numpy if row else None,
        "python": PYTHON_RULE if not recipe.target.needs_gpu else None,
        "tokenizer_sha256": hash_file(context.inputs["quantize"].path / "tokenizer.json"),
    }


def _serves_with(row: StackRow, compiled: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a server of the bundle loads; a TensorRT plan needs the very TensorRT that compiled it."""
    rows = [item.model_dump(exclude_none=True) for item in row.components if item.serving]
    for item in rows:
        if compiled and item["name"] == "TensorRT":
            item["version"] = compiled["version"]
    return rows


def summarize(inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """The deterministic figures of a whole run, as ``trtforge run`` shows them at its end.

    The bundle adds ``waived``: the preflight codes that the recipe set aside, with their justifications.
    """
    evaluated, engine = inputs["evaluate"].summary, inputs["build"].summary
    left_out = {name: dict(reason) for name, artifact in inputs.items() if (reason := not_run(artifact)) is not None}
    summary = {
        "model": inputs["intake"].summary["source"],
        "architecture": inputs["intake"].summary["architecture"],
        "format": inputs["quantize"].summary["format"],
        "kv_cache": inputs["quantize"].summary["kv_cache"],
        "emulated": inputs["quantize"].summary.get("emulated", []),
        "bytes": {
            "checkpoint": weight_bytes(inputs["intake"]),
            "quantized": weight_bytes(inputs["quantize"]),
            "engine": size_of(inputs["build"]),
        },
        "perplexity": {
            "baseline": evaluated["baseline"],
            "quantized": evaluated["candidate"],
            "increase": evaluated["increase"],
        },
        "quality": {name: evaluated[name] for name in QUALITY if name in evaluated},
        "parity": {} if "parity" in left_out else dict(inputs["parity"].summary),
        "limits": engine["limits"],
        "kv_blocks": engine["kv_cache"],
    }
    if "speculation" in inputs and "speculation" not in left_out:
        summary["speculation"] = headline(inputs["speculation"].summary)
    if "smoke" not in left_out:
        smoke = inputs["smoke"].summary
        summary["smoke"] = {"passed": smoke["passed"], "of": len(smoke["checks"])}
    if left_out:
        summary |= {"not_run": left_out, "target": engine["target"], "compiled": engine["compiled"]}
    return summary


def headline(speculation: Mapping[str, Any]) -> dict[str, Any]:
    """The few figures of a stage ``speculation`` that a run shows at its end."""
    greedy = speculation["greedy"]
    lengths = {
        row["kind"]: row["accepted_length"]["value"]
        for row in speculation["acceptance"]
        if row["temperature"] == 0 and row["accepted_length"] is not None
    }
    return {
        "method": speculation["method"],
        "answers": greedy["answers"],
        "beyond_tolerance": greedy["beyond_tolerance"],
        "accepted_length": lengths,
    }
