"""Writes the repository of a recipe's layout for an engine or checkpoint that lies somewhere on this machine.

A bundle has fixed places, so its stages call the layouts themselves; this is for a repository that is
emitted by hand: the references are worked out from where the folders are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from triton_repo.layouts import inflight_batcher_llm, llmapi, native
from triton_repo.layouts.llmapi_settings import llm_version
from triton_repo.layouts.sources import require_served
from triton_repo.layouts.writing import writing
from triton_repo.trtllm_engine import describe_engine
from triton_repo.validate import require_valid
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.kinds import EAGLE3
from trtforge.drafting.trtllm_head import head_for
from trtforge.ground.errors import ForgeError
from trtforge.recipe.load import LoadedRecipe
from trtforge.recipe.schema import Recipe


def emit_for(
    loaded: LoadedRecipe, source: Path, out: Path, *, name: str = "model", tokenizer: Path | None = None
) -> dict[str, Any]:
    """Write and check the repository.

    Args:
        loaded: the recipe; its ``triton.layout`` decides.
        source: the engine (``native``, ``inflight_batcher_llm``) or the checkpoint (``llmapi``).
        name: the model's name where the layout leaves it open (``native``).
        tokenizer: folder of ``tokenizer.json``, where it is not beside the engine.

    Raises:
        ForgeError: TF-TRI-021 (a fault that the check finds), TF-TRI-068 (no tokenizer or checkpoint
            there), TF-TRI-069 (a draft model or adapter that is no folder here), TF-TRI-070 (the layout does not
            serve what lies there), TF-TRI-264 (a drafter that needs a conversion), and the layout's own.
    """
    recipe = loaded.recipe
    require_served(source, recipe.triton.layout)
    # checked before it is in place; it stands beside its place, so that relative references hold already
    with writing(out) as folder:
        if recipe.triton.layout == "inflight_batcher_llm":
            summary = _engine(recipe, source, folder, tokenizer or source)
        elif recipe.triton.layout == "llmapi":
            summary = _checkpoint(loaded, source, folder)
        else:
            summary = native.emit(
                source,
                folder,
                name=name,
                engine_reference=_from_model(source, folder, name),
                decoupled=recipe.triton.decoupled,
                client_names=recipe.triton.client_names,
            )
        require_valid(folder, source if recipe.triton.layout == "native" else None, place=out)
    return summary


def _engine(recipe: Recipe, engine_dir: Path, out: Path, tokenizer: Path) -> dict[str, Any]:
    engine = describe_engine(engine_dir)
    if not (tokenizer / "tokenizer.json").is_file():
        raise ForgeError(
            "TF-TRI-068",
            "there is no tokenizer",
            asked=str(tokenizer / "tokenizer.json"),
            why="preprocessing, postprocessing and BLS load it from that folder",
            remedies=["copy tokenizer.json and tokenizer_config.json beside the engine", "--tokenizer DIR"],
        )
    draft = engine_dir.resolve().parent / "draft" / engine_dir.resolve().name
    drafts = recipe.speculation.method == "draft_target" and (draft / "config.json").is_file()
    return inflight_batcher_llm.emit(
        recipe,
        engine,
        out,
        engine_reference=str(engine_dir.resolve()),
        tokenizer_reference=_from_model(tokenizer, out, "preprocessing"),
        draft=describe_engine(draft) if drafts else None,
        draft_reference=str(draft),
    )


def _checkpoint(loaded: LoadedRecipe, checkpoint: Path, out: Path) -> dict[str, Any]:
    if not (checkpoint / "config.json").is_file() or not any(checkpoint.glob("*.safetensors")):
        raise ForgeError(
            "TF-TRI-068",
            "there is no checkpoint",
            asked=str(checkpoint),
            why="LLM() loads config.json and safetensors of a Hugging Face checkpoint from that folder",
            remedies=["name the quantized checkpoint's folder"],
        )
    recipe = loaded.recipe
    lora = recipe.build.trtllm.lora
    adapters = [] if lora is None else [_folder(loaded, source) for source in lora.adapters.values()]
    parents = {folder.parent for folder in adapters}
    draft = None if recipe.speculation.draft is None else _folder(loaded, recipe.speculation.draft)
    return llmapi.emit(
        recipe,
        out,
        model_reference=_from_model(checkpoint, out, "tensorrt_llm"),
        draft_reference=None if draft is None else _from_model(draft, out, "tensorrt_llm"),
        taps=None if draft is None else _taps(recipe, draft, checkpoint),
        adapters_reference=_from_model(parents.pop(), out, "tensorrt_llm") if len(parents) == 1 else None,
        adapters=[_from_model(folder, out, "tensorrt_llm") for folder in adapters],
    )


def _taps(recipe: Recipe, draft: Path, checkpoint: Path) -> tuple[int, ...] | None:
    """The layers that an EAGLE-3 drafter taps; the repository names it where it lies, so it must load as it stands."""
    if recipe.speculation.method != EAGLE3.name:
        return None
    version = str(llm_version(recipe))
    head = head_for(inspect_folder(draft, checkpoint), version, asked=f"speculation.draft: {recipe.speculation.draft}")
    if head.conversion is None:
        return head.taps
    assert head.source.dialect is not None
    raise ForgeError(
        "TF-TRI-264",
        f"the drafter is written in the dialect {head.source.dialect.name}, which TensorRT-LLM {version} does not load",
        asked=f"speculation.draft: {recipe.speculation.draft}",
        numbers={"dialect": head.source.dialect.name, "loads": head.consumer.dialect.name},
        why="the repository refers to the drafter where it lies",
        remedies=[
            f"trtforge draft convert {draft} --to {head.consumer.dialect.name} --target {checkpoint} -o NEW",
            "trtforge run, whose artifact holds the converted drafter",
        ],
    )


def _folder(loaded: LoadedRecipe, source: str) -> Path:
    folder = loaded.directory / source
    if not folder.is_dir():
        raise ForgeError(
            "TF-TRI-069",
            "a draft model or adapter is no folder on this machine",
            asked=source,
            why="the repository refers to it where it lies",
            remedies=["fetch it first and name its folder in the recipe"],
        )
    return folder


def _from_model(folder: Path, out: Path, model: str) -> str:
    """``folder`` as a model of the repository ``out`` sees it: Triton starts a model in its own folder."""
    return os.path.relpath(folder.resolve(), (out / model).resolve())
