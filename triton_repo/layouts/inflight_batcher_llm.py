"""The ``inflight_batcher_llm`` layout: an engine of TensorRT-LLM ≤ 1.2.1 behind preprocessing, ensemble and BLS.

Five models. ``tensorrt_llm`` is served by TensorRT-LLM's C++ backend; preprocessing, postprocessing and BLS are
our own Python models (``ifb_code/``) and bring their modules along. With ``speculation.method: draft_target`` a sixth,
``tensorrt_llm_draft``, serves the engine that drafts, and BLS asks both in turn. The batch size, the decoupled flag
and the types of the logits and of the weights are decided once, from the recipe and the engine, and written everywhere.

Paths: ``engine_reference`` (``gpt_model_path``) is relative to the server's working directory, because
the C++ backend opens it there; the launch scripts start the server in the bundle. ``tokenizer_reference`` is
relative to a model's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_repo.configs import add_cpu_instance, add_queue, add_tensors, new_config, print_config, set_parameters
from triton_repo.layouts import ifb_settings
from triton_repo.layouts import ifb_tensors as tensors
from triton_repo.layouts.ifb_engine import engine_facts, window_parameter, with_window
from triton_repo.layouts.shipping import TOKENIZER_MODULES, ship, source_of
from triton_repo.layouts.writing import from_model, writing
from triton_repo.parameters import checked
from triton_repo.tensors import TensorRow
from triton_repo.trtllm_engine import describe_engine, require_facts
from trtforge.ground.errors import ForgeError
from trtforge.models.kv_window import PARAMETER
from trtforge.recipe.load import LoadedRecipe
from trtforge.recipe.schema import Recipe
from trtforge.targets.layouts import INFLIGHT_BATCHER

LAYOUT = INFLIGHT_BATCHER.name
DRAFT_MODEL = "tensorrt_llm_draft"
MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
#: most instances of BLS: each is a process with a tokenizer, and serves one request at a time
MAX_BLS_INSTANCES = 32
_TYPES = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
_CODE = "triton_repo.layouts.ifb_code"
#: the names that clients may use, and what is refused by them
_NAMES: Mapping[str, str] = {
    "runtime.frontend.names": "names.py",
    "triton_repo.layouts.ifb_tensors": "ensemble_tensors.py",
    "triton_repo.tensors": "tensors.py",
}
_SHIPPED: Mapping[str, Mapping[str, str]] = {
    "preprocessing": {
        f"{_CODE}.preprocessing_model": "model.py",
        f"{_CODE}.words": "words.py",
        **_NAMES,
        f"{_CODE}.ends": "ends.py",
        **TOKENIZER_MODULES,
    },
    "postprocessing": {f"{_CODE}.postprocessing_model": "model.py", **TOKENIZER_MODULES},
    "tensorrt_llm_bls": {
        f"{_CODE}.bls_model": "model.py",
        f"{_CODE}.generation": "generation.py",
        f"{_CODE}.drafting": "drafting.py",
        "runtime.sampling.words": "stop_texts.py",
        **_NAMES,
        **TOKENIZER_MODULES,
    },
}


def emit(
    recipe: Recipe,
    engine: Mapping[str, Any],
    out: Path,
    *,
    engine_reference: str = "engine",
    tokenizer_reference: str = "../../engine",
    draft: Mapping[str, Any] | None = None,
    draft_reference: str = "engine/draft",
) -> dict[str, Any]:
    """Write the repository as the folder ``out``, which must be new or empty; it appears whole or not at all.

    Args:
        recipe: what was asked for.
        engine: the engine's facts (:func:`~triton_repo.trtllm_engine.describe_engine`).
        engine_reference: folder of the engine, seen from the server's working directory.
        tokenizer_reference: folder of ``tokenizer.json``, seen from a model's folder.
        draft: the facts of the engine that drafts, where the recipe has one.
        draft_reference: its folder, seen as ``engine_reference`` is.

    Returns:
        Layout, models, the engine's limits, and the parameters of ``tensorrt_llm``.

    Raises:
        ForgeError: TF-TRI-003 (the folder is not empty), TF-TRI-061/062 (``triton.parameters``), TF-TRI-063
            (the description lacks facts), TF-TRI-064 (recipe and engine do not fit).
    """
    require_facts(engine)
    asked = ifb_settings.parameters(recipe, engine, engine_reference, draft)
    parameters = checked(LAYOUT, "tensorrt_llm", asked)
    types = {"logits": _triton_type(engine, "logits_dtype"), "weights": _triton_type(engine, "dtype")}
    configs = {
        "preprocessing": _preprocessing(recipe, engine, tokenizer_reference, types),
        "tensorrt_llm": _engine_model(recipe, engine, parameters, types),
        "postprocessing": _postprocessing(recipe, engine, tokenizer_reference),
        "ensemble": _ensemble(engine, types, recipe.triton.decoupled),
        "tensorrt_llm_bls": _bls(recipe, engine, tokenizer_reference, types),
    }
    if recipe.speculation.method == "draft_target" and draft is not None:
        require_facts(draft)
        own = ifb_settings.draft_parameters(recipe, engine, draft, draft_reference)
        types = {"logits": _triton_type(draft, "logits_dtype"), "weights": _triton_type(draft, "dtype")}
        configs[DRAFT_MODEL] = _engine_model(recipe, draft, checked(LAYOUT, "tensorrt_llm", own), types, DRAFT_MODEL)
    with writing(out) as folder:
        for name, config in configs.items():
            version = folder / name / "1"
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(print_config(config), encoding="utf-8")
            if name in _SHIPPED:
                ship(_SHIPPED[name], version)
            else:
                # a folder of nothing does not survive an archive or a version control system
                (version / ".keep").touch()
    limits = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len")
    return {
        "layout": LAYOUT,
        "model": "tensorrt_llm_bls",
        "models": list(configs),
        "limits": {name: engine[name] for name in limits},
        "decoupled": recipe.triton.decoupled,
        "parameters": parameters,
    }


def _triton_type(engine: Mapping[str, Any], fact: str) -> str:
    found = _TYPES.get(str(engine[fact]))
    if found is None:
        raise ForgeError(
            "TF-TRI-063",
            "this is no engine of TensorRT-LLM",
            asked=f"{fact}: {engine[fact]}",
            why=f"a type that Triton's tensors can have is one of {', '.join(_TYPES)}",
            remedies=["describe it with triton_repo.trtllm_engine.describe_engine"],
        )
    return found


def code_files() -> list[Path]:
    """Source files whose content ends up in a repository (for a stage's key)."""
    return sorted({source_of(module) for modules in _SHIPPED.values() for module in modules})


def _engine_model(
    recipe: Recipe,
    engine: Mapping[str, Any],
    parameters: Mapping[str, str],
    types: Mapping[str, str],
    name: str = "tensorrt_llm",
) -> Any:
    size = engine["max_batch_size"]
    config = new_config(name, backend="tensorrtllm", max_batch_size=size, decoupled=recipe.triton.decoupled)
    add_queue(config, preferred=size, delay_us=recipe.triton.queue_delay_us)
    _add(config, tensors.ENGINE_INPUTS, tensors.ENGINE_OUTPUTS, types)
    add_cpu_instance(config, max(1, len(parameters["gpu_device_ids"].split(";"))))
    set_parameters(config, parameters)
    return config


def _preprocessing(recipe: Recipe, engine: Mapping[str, Any], tokenizer: str, types: Mapping[str, str]) -> Any:
    size = engine["max_batch_size"]
    config = new_config("preprocessing", backend="python", max_batch_size=size, decoupled=False)
    add_queue(config, preferred=size, delay_us=recipe.triton.queue_delay_us)
    _add(config, tensors.PREPROCESSING_INPUTS, tensors.PREPROCESSING_OUTPUTS, types)
    add_cpu_instance(config, recipe.triton.preprocessing_instances)
    values = {"tokenizer_dir": tokenizer, "vocab_size": str(engine["vocab_size"])}
    set_parameters(config, checked(LAYOUT, "preprocessing", values))
    return config


def _postprocessing(recipe: Recipe, engine: Mapping[str, Any], tokenizer: str) -> Any:
    config = new_config("postprocessing", backend="python", max_batch_size=engine["max_batch_size"], decoupled=False)
    config.dynamic_batching.SetInParent()
    add_tensors(config, tensors.POSTPROCESSING_INPUTS, tensors.POSTPROCESSING_OUTPUTS)
    add_cpu_instance(config, recipe.triton.postprocessing_instances)
    set_parameters(config, checked(LAYOUT, "postprocessing", {"tokenizer_dir": tokenizer}))
    return config


def _bls(recipe: Recipe, engine: Mapping[str, Any], tokenizer: str, types: Mapping[str, str]) -> Any:
    size, decoupled = engine["max_batch_size"], recipe.triton.decoupled
    config = new_config("tensorrt_llm_bls", backend="python", max_batch_size=size, decoupled=decoupled)
    _add(config, tensors.BLS_INPUTS, tensors.BLS_OUTPUTS, types)
    add_cpu_instance(config, min(size, MAX_BLS_INSTANCES))
    values = {
        "tokenizer_dir": tokenizer,
        "accumulate_tokens": str(recipe.triton.accumulate_tokens).lower(),
        "max_beam_width": str(engine["max_beam_width"]),
        "max_seq_len": str(engine["max_seq_len"]),
    }
    if recipe.speculation.method == "draft_target":
        values |= {"tensorrt_llm_draft_model_name": DRAFT_MODEL, "num_draft_tokens": str(engine["max_draft_len"])}
    set_parameters(config, checked(LAYOUT, "tensorrt_llm_bls", values))
    return config


def _ensemble(engine: Mapping[str, Any], types: Mapping[str, str], decoupled: bool) -> Any:
    """The three steps; what a step makes for the next one is named ``_NAME``.

    An ensemble has no decoupled flag of its own to set: Triton takes it from its members.
    """
    config = new_config("ensemble", backend="", max_batch_size=engine["max_batch_size"], decoupled=decoupled)
    config.platform = "ensemble"
    _add(config, tensors.ENSEMBLE_INPUTS, tensors.ENSEMBLE_OUTPUTS, types)
    inside = {name: f"_{name}" for name in tensors.TO_ENGINE}
    passed = {row.name: row.name for row in tensors.ENSEMBLE_OUTPUTS if row.name != "text_output"}
    _step(config, "preprocessing", {inner: name for name, inner in tensors.TO_PREPROCESSING.items()}, inside)
    _step(
        config,
        "tensorrt_llm",
        {
            **{inner: inside[name] for name, inner in tensors.TO_ENGINE.items()},
            **{inner: name for name, inner in tensors.DIRECT.items()},
        },
        {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH", **passed},
    )
    _step(
        config,
        "postprocessing",
        {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
        {"OUTPUT": "text_output"},
    )
    return config


def _step(config: Any, model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
    step.input_map.update(inputs)
    step.output_map.update(outputs)


def _add(config: Any, inputs: tuple[TensorRow, ...], outputs: tuple[TensorRow, ...], types: Mapping[str, str]) -> None:
    add_tensors(config, tensors.typed(inputs, **types), tensors.typed(outputs, **types))


def in_bundle(recipe: Recipe, engine: Mapping[str, Any], engine_dir: Path, out: Path) -> dict[str, Any]:
    """The repository beside the engine; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    draft = engine.get("draft")
    return emit(
        with_window(recipe, engine),
        engine_facts(engine),
        out,
        engine_reference=f"engine/{engine['engine_dir']}",
        draft=None if draft is None else {**engine_facts(draft), PARAMETER: window_parameter(draft)},
        draft_reference=f"engine/draft/{engine['engine_dir']}",
    )


def by_hand(loaded: LoadedRecipe, source: Path, out: Path, *, name: str, tokenizer: Path | None) -> dict[str, Any]:
    """A repository for an engine that lies somewhere; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    recipe, tokenizer, engine_dir = loaded.recipe, tokenizer or source, source.resolve()
    engine = describe_engine(source)
    if not (tokenizer / "tokenizer.json").is_file():
        raise ForgeError(
            "TF-TRI-068",
            "there is no tokenizer",
            asked=str(tokenizer / "tokenizer.json"),
            why="preprocessing, postprocessing and BLS load it from that folder",
            remedies=["copy tokenizer.json and tokenizer_config.json beside the engine", "--tokenizer DIR"],
        )
    draft = engine_dir.parent / "draft" / engine_dir.name
    drafts = recipe.speculation.method == "draft_target" and (draft / "config.json").is_file()
    return emit(
        recipe,
        engine,
        out,
        engine_reference=str(engine_dir),
        tokenizer_reference=from_model(tokenizer, out, "preprocessing"),
        draft=describe_engine(draft) if drafts else None,
        draft_reference=str(draft),
    )
