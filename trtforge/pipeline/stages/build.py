"""build: the engine of the recipe's target: of the graph, planned for this machine, or of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path
from trtforge.machine.software import tool_versions
from trtforge.pipeline.stage import StageBase, StageContext
from trtforge.pipeline.stages.common import copy_estimate, draft_directory, plain
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, GateResult, StageResult

if TYPE_CHECKING:
    from builder.targets.trtllm_llmapi.target import LlmSettings

#: files of an engine that two builds of the same inputs need not agree on
MEASURED = ("build.log", "model.cache", "trtllm/*")


class BuildStage(StageBase):
    """Keyed by the kind of processor too: kernels are planned for it."""

    name = "build"
    needs = ("quantize", "graph")
    code_version = "4"
    tools = ("torch",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        section = {"name": recipe.name, "build": plain(recipe.build)}
        if _of_checkpoint(recipe):
            section |= _trtllm_section(recipe, recipe_dir)
        elif recipe.speculation.method != "none":
            section["speculation"] = plain(recipe.speculation)
        if recipe.build.target == "torch":
            from builder.targets.torch import target as torch_target

            section["torch"] = torch_target.key_facts()
        if recipe.build.target == "tensorrt":
            from builder.targets.tensorrt.target import key_facts

            section["tensorrt"] = {"stack": recipe.stack, "here": key_facts()}
        if recipe.build.target == "tensorrt-rtx":
            section["tensorrt_rtx"] = tool_versions(("tensorrt-rtx",))
        return section

    def host_facts(self) -> dict[str, Any]:
        from trtforge.machine.processor import processor

        return {"cpu_capability": processor().capability}

    def disk_estimate(self, recipe: Recipe, inputs: Mapping[str, Artifact]) -> int:
        return copy_estimate(inputs["quantize" if _of_checkpoint(recipe) else "graph"])

    def run(self, context: StageContext) -> StageResult:
        if _of_checkpoint(context.recipe):
            return _build_of_checkpoint(context)
        if context.recipe.build.target == "tensorrt":
            return _build_tensorrt(context)
        if context.recipe.build.target == "tensorrt-rtx":
            return _build_rtx(context)
        from builder.speculation import engine_record
        from builder.targets import build_engine

        engine = build_engine(
            context.inputs["graph"].path,
            context.out,
            name=context.recipe.name,
            build=context.recipe.build,
            speculation=engine_record(context.recipe.speculation, context.inputs["graph"].path),
            progress=context.progress,
        )
        leave_out = ("linears", "kernel_choices", "sha256")
        summary = {key: value for key, value in engine.items() if key not in leave_out}
        kernels: dict[str, int] = {}
        for linear in engine["linears"]:
            name = f"{linear['stored']} as {linear['executed']}, {'native' if linear['native'] else 'emulated'}"
            kernels[name] = kernels.get(name, 0) + 1
        return StageResult(summary={**summary, "linears": kernels})


def _build_tensorrt(context: StageContext) -> StageResult:
    """A plan of this machine's GPU; kernels are chosen by measured times, so its bytes are measured too."""
    from builder.speculation import engine_record
    from builder.targets.tensorrt.target import MEASURED as CHOSEN_BY_TIME
    from builder.targets.tensorrt.target import build_engine

    recipe = context.recipe
    engine = build_engine(
        context.inputs["graph"].path,
        context.out,
        name=recipe.name,
        build=recipe.build,
        speculation=engine_record(recipe.speculation, context.inputs["graph"].path),
        stack=recipe.stack,
        progress=context.progress,
    )
    plan = {key: engine["tensorrt"].pop(key) for key in ("plan_bytes", "layers")}
    stored: dict[str, int] = {}
    for linear in engine["linears"]:
        stored[linear["stored"]] = stored.get(linear["stored"], 0) + 1
    summary = {key: value for key, value in engine.items() if key not in ("linears", "sha256")}
    return StageResult(summary={**summary, "linears": stored}, measurements=plan, measured=CHOSEN_BY_TIME)


def _build_rtx(context: StageContext) -> StageResult:
    """RTX engines, whose hashes are part of the result: a rebuild gives the same bytes."""
    from builder.targets import build_engine

    engine = build_engine(
        context.inputs["graph"].path,
        context.out,
        name=context.recipe.name,
        build=context.recipe.build,
        progress=context.progress,
    )
    return StageResult(summary=engine, measured=("build.log",))


def _of_checkpoint(recipe: Recipe) -> bool:
    return not recipe.target.from_graph


def _trtllm_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What TensorRT-LLM's targets depend on beside ``build``."""
    from builder.targets.trtllm.common import engine_stack
    from builder.targets.trtllm.runner import why_not_here
    from trtforge.ground.hashing import hash_file

    target = recipe.build.target
    row, version = engine_stack(target, recipe.stack)
    cache = timing_cache(recipe, recipe_dir)
    draft = draft_directory(recipe, recipe_dir)
    return {
        "speculation": plain(recipe.speculation),
        "stack": {"name": row.name, "container": row.container, "tensorrt_llm": version},
        "not_compiled": why_not_here(version) if target == "trtllm-engine" else None,
        "timing_cache": hash_file(cache) if cache else None,
        "draft": {path.name: hash_file(path) for path in sorted(draft.iterdir()) if path.is_file()} if draft else None,
    }


def timing_cache(recipe: Recipe, recipe_dir: Path) -> Path | None:
    """The file that ``build.trtllm.timing_cache`` names, below the recipe's folder.

    Raises:
        ForgeError: ``TF-BLD-045`` it is missing or lies elsewhere.
    """
    named = recipe.build.trtllm.timing_cache
    if named is None:
        return None
    path = real_path(recipe_dir / named)
    if path.is_relative_to(real_path(recipe_dir)) and path.is_file():
        return path
    raise ForgeError(
        "TF-BLD-045",
        f"There is no timing cache {named} beside the recipe",
        asked=f"build.trtllm.timing_cache: {named}",
        why="It must be a file below the recipe's folder; a build writes model.cache, which a later one can read.",
        remedies=["remove build.trtllm.timing_cache for the first build", "copy model.cache of a build to that place"],
    )


def _build_of_checkpoint(context: StageContext) -> StageResult:
    recipe, checkpoint = context.recipe, context.inputs["quantize"].path
    if recipe.build.target == "trtllm-engine":
        from builder.targets.trtllm_engine import target as engine_target

        engine = engine_target.build_engine(
            checkpoint,
            context.out,
            name=recipe.name,
            build=recipe.build,
            speculation=recipe.speculation,
            stack=recipe.stack,
            timing_cache=timing_cache(recipe, context.recipe_dir),
            draft=draft_directory(recipe, context.recipe_dir),
            scratch=context.scratch,
            progress=context.progress,
        )
        gate = _as_evaluated(engine["conversion"]["requantized"])
        return StageResult(summary=engine, measured=MEASURED, gates=[gate])
    from builder.targets.trtllm_llmapi import target as llmapi_target

    draft = draft_directory(recipe, context.recipe_dir)
    engine = llmapi_target.build_engine(
        checkpoint,
        context.out,
        name=recipe.name,
        build=recipe.build,
        settings=_llm_settings(recipe, draft, checkpoint),
        speculation=recipe.speculation,
        stack=recipe.stack,
        draft=draft,
        progress=context.progress,
    )
    return StageResult(summary=engine)


def _as_evaluated(again: Mapping[str, Any]) -> GateResult:
    """The converted checkpoint holds the weights and scales of the one that was evaluated."""
    changed = again["weights"] + again["kv_layers"]
    detail = "the converted weights and KV scales are those that were evaluated"
    if changed:
        detail = (
            f"the conversion rounds {again['weights']:,} weights of {again['linears']} linears again, by up to "
            f"{again['largest_relative_change']:.2%} each, and changes the KV scales of {again['kv_layers']} layers; "
            "what was evaluated is not what the engine holds"
        )
    return GateResult("deployed_weights", changed == 0, float(changed), 0.0, detail)


def _llm_settings(recipe: Recipe, folder: Path | None, checkpoint: Path) -> LlmSettings:
    """The layout's own arguments: the repository and the artifact must not differ."""
    from builder.targets.trtllm.common import engine_stack
    from builder.targets.trtllm_llmapi.target import CHECKPOINT_DIR, DRAFT_DIR, LlmSettings, served_head
    from triton_repo.layouts.llmapi_settings import llm_arguments, serve_options

    draft = DRAFT_DIR if recipe.speculation.draft else None
    _, version = engine_stack(recipe.build.target, recipe.stack)
    head = served_head(folder, checkpoint, version, recipe.speculation, whole=False) if folder is not None else None
    taps = head.taps if head is not None else None
    options = serve_options(recipe, CHECKPOINT_DIR, draft=draft, taps=taps)
    arguments = llm_arguments(recipe, CHECKPOINT_DIR, draft=draft, taps=taps)
    return LlmSettings(arguments, options.command, options.file_name, options.file_text)
