"""repository: the Triton model repository of the recipe's layout, validated against the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.models.kv_window import PARAMETER
from trtforge.pipeline.stage import StageBase, StageContext
from trtforge.pipeline.stages.common import plain
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

#: folder below the artifact; the engine is found from a model's folder as ``../../engine``
REPOSITORY_DIR = "repository"


class RepositoryStage(StageBase):
    """Emits below ``repository/``, so that the artifact's own manifest stays out of what Triton reads."""

    name = "repository"
    needs = ("build",)
    code_version = "4"
    tools = ("tritonclient",)

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        section = {
            "name": recipe.name,
            "layout": recipe.triton.layout,
            "version": recipe.triton.version,
        }
        if recipe.triton.layout == "native":
            choices = {"decoupled": recipe.triton.decoupled, "client_names": recipe.triton.client_names}
            return {**section, **choices, "model_code": _code_hash([_native_code()])}
        return {
            **section,
            "triton": plain(recipe.triton),
            "build": plain(recipe.build),
            "speculation": plain(recipe.speculation),
            "model_code": _code_hash(_layout(recipe.triton.layout).code_files()),
        }

    def run(self, context: StageContext) -> StageResult:
        from triton_repo.validate import require_valid

        recipe, out = context.recipe, context.out / REPOSITORY_DIR
        engine_dir = context.inputs["build"].path
        context.progress.start("writing the model repository")
        if recipe.triton.layout == "native":
            from triton_repo.layouts import native

            summary = native.emit(
                engine_dir,
                out,
                name=recipe.name,
                decoupled=recipe.triton.decoupled,
                client_names=recipe.triton.client_names,
            )
            require_valid(out, engine_dir)
            return StageResult(summary=summary)
        engine = context.inputs["build"].summary
        module = _layout(recipe.triton.layout)
        if recipe.triton.layout == "inflight_batcher_llm":
            reference = f"engine/{engine['engine_dir']}"
            draft = engine.get("draft")
            summary = module.emit(
                with_window(recipe, engine),
                engine_facts(engine),
                out,
                engine_reference=reference,
                draft=None if draft is None else {**engine_facts(draft), PARAMETER: _window(draft)},
                draft_reference=f"engine/draft/{engine['engine_dir']}",
            )
        else:
            folder = "../../engine/draft" if recipe.speculation.draft else None
            taps = (engine.get("drafter") or {}).get("taps")
            summary = module.emit(
                recipe, out, model_reference="../../engine/checkpoint", draft_reference=folder, taps=taps
            )
        require_valid(out)
        return StageResult(summary=summary)


def _layout(name: str) -> Any:
    """The module of a layout that serves TensorRT-LLM."""
    import importlib

    return importlib.import_module(f"triton_repo.layouts.{name}")


def _native_code() -> Path:
    from triton_repo.layouts.native import MODEL_CODE

    return MODEL_CODE


def _code_hash(files: list[Path]) -> str:
    """One hash over the files that a repository carries."""
    from trtforge.ground.hashing import hash_file, hash_json

    return hash_json([hash_file(path) for path in files]) if len(files) > 1 else hash_file(files[0])


def with_window(recipe: Recipe, engine: Mapping[str, Any]) -> Recipe:
    """The recipe with the model's sliding window as a parameter: an engine of 1.2 does not know it by itself.

    One value where every layer slides, else one a layer.
    """
    value = _window(engine)
    if value is None or PARAMETER in recipe.triton.parameters:
        return recipe
    triton = recipe.triton.model_copy(update={"parameters": {**recipe.triton.parameters, PARAMETER: value}})
    return recipe.model_copy(update={"triton": triton})


def _window(engine: Mapping[str, Any]) -> str | None:
    window = engine["sliding_window"]
    if not window or window >= engine["limits"]["max_seq_len"]:
        return None
    if full := engine.get("full_attention_layers"):
        longest = engine["limits"]["max_seq_len"]
        return ",".join(str(longest if layer in full else window) for layer in range(engine["num_layers"]))
    return str(window)


def engine_facts(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What a repository must know of an engine, as :func:`triton_repo.trtllm_engine.describe_engine` would say it
    once the engine is compiled; taken from what was asked, so that a repository can be written before."""
    settings, parallel = engine["settings"], engine["parallel"]
    return {
        **engine["limits"],
        "tokens_per_block": settings["tokens_per_block"],
        "vocab_size": engine["vocab_size"],
        "logits_dtype": engine["logits_dtype"],
        "dtype": engine["dtype"],
        "tp": parallel["tp"],
        "pp": parallel["pp"],
        "speculation": settings["speculative_decoding_mode"] or "none",
        "max_draft_len": settings["max_draft_len"] or 0,
        "paged_context_attention": settings["use_paged_context_fmha"],
        "gather_context_logits": settings["gather_context_logits"],
        "gather_generation_logits": settings["gather_generation_logits"],
        "max_lora_rank": settings["max_lora_rank"] or 0,
        "kv_bytes_per_token": engine["kv_bytes_per_token"],
        "version": engine["tensorrt_llm"],
    }
