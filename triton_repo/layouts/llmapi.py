"""The ``llmapi`` layout: TensorRT-LLM's ``LLM()`` on PyTorch behind one Python model (TensorRT-LLM ≥ 1.3).

``tensorrt_llm/config.pbtxt``, ``1/model.py`` (ours), ``1/model.yaml`` (``triton_config`` and the arguments of
``LLM()``). Tensor names and types are those of NVIDIA's model of that name:
https://github.com/NVIDIA/TensorRT-LLM/tree/main/triton_backend/all_models/llmapi. NVIDIA leaves the batch size and
the decoupled flag to auto-completion; here both files hold them and the model checks that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_repo.configs import add_cpu_instance, add_tensors, new_config, print_config, set_parameters
from triton_repo.layouts.llmapi_settings import llm_arguments, llm_version
from triton_repo.layouts.shipping import ship, source_of
from triton_repo.layouts.writing import from_model, writing
from triton_repo.parameters import checked
from triton_repo.tensors import TensorRow
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.kinds import EAGLE3
from trtforge.drafting.trtllm_head import head_for
from trtforge.ground.errors import ForgeError
from trtforge.recipe.load import LoadedRecipe
from trtforge.recipe.schema import Recipe
from trtforge.targets.layouts import LLM_API

LAYOUT = LLM_API.name
_SHIPPED: Mapping[str, str] = {
    "triton_repo.layouts.llmapi_code.model": "model.py",
    "triton_repo.layouts.llmapi_code.request": "request.py",
    "runtime.frontend.names": "names.py",
    "trtforge.ground.errors": "errors.py",
}


def _given(name: str, dtype: str, meaning: str, dims: tuple[int, ...] = (1,)) -> TensorRow:
    return TensorRow(name, dtype, dims, True, meaning)


INPUTS: tuple[TensorRow, ...] = (
    TensorRow("text_input", "STRING", (-1,), True, "the prompt, one; a request without it is refused"),
    _given("image_url", "STRING", "refused: this model serves text", (-1,)),
    _given("streaming", "BOOL", "one response a piece of text"),
    _given("sampling_param_best_of", "INT32", "sequences that are tried"),
    _given("sampling_param_temperature", "FP32", "divides the logits"),
    _given("sampling_param_top_k", "INT32", "keep the k likeliest tokens"),
    _given("sampling_param_top_p", "FP32", "keep the smallest set of that probability"),
    _given("sampling_param_frequency_penalty", "FP32", "subtracted for each occurrence"),
    _given("sampling_param_presence_penalty", "FP32", "subtracted once from generated tokens"),
    _given("sampling_param_max_tokens", "INT32", "tokens to generate at most; default that of SamplingParams, 32"),
    _given("sampling_param_stop", "STRING", "texts that end the answer", (-1,)),
    _given("sampling_param_seed", "UINT64", "of the sampling"),
    _given("sampling_param_exclude_input_from_output", "BOOL", "leave the prompt's tokens out"),
    _given("sampling_param_return_perf_metrics", "BOOL", "fill the outputs of cache, time and speculation"),
    _given("return_finish_reason", "BOOL", "fill finish_reason"),
    _given("return_stop_reason", "BOOL", "fill stop_reason"),
    _given("return_cumulative_logprob", "BOOL", "fill cumulative_logprob"),
    _given("stop", "BOOL", "end the running request with this request id"),
    _given("lora_id", "UINT64", "number of the adapter; with lora_name and lora_path"),
    _given("lora_name", "STRING", "name of the adapter"),
    _given("lora_path", "STRING", "its folder below the server's folder of adapters"),
    _given("lora_ckpt_source", "STRING", "hf or nemo; default hf"),
    _given("cache_salt", "STRING", "shares KV blocks with requests of the same salt alone; ours, not NVIDIA's"),
)
#: what a recipe with ``build.trtllm.guided_decoding`` adds, by the names of the engines' ensemble
GUIDE_INPUTS: tuple[TensorRow, ...] = (
    _given("guided_decoding_guide_type", "STRING", "json, json_schema, regex, ebnf_grammar, structural_tag"),
    _given("guided_decoding_guide", "STRING", "the schema, expression or grammar; none with json"),
)
#: what a recipe with ``build.trtllm.max_beam_width`` over 1 adds
BEAM_INPUTS: tuple[TensorRow, ...] = (
    _given("sampling_param_use_beam_search", "BOOL", "beams, as many as sampling_param_best_of"),
)
OUTPUTS: tuple[TensorRow, ...] = (
    TensorRow("text_output", "STRING", (-1,), False, "the answer, or the next piece of it, one a sequence"),
    TensorRow("finish_reason", "STRING", (-1,), False, "stop, length, timeout or cancelled"),
    TensorRow("stop_reason", "STRING", (-1,), False, "stop text or token that ended it"),
    TensorRow("cumulative_logprob", "FP32", (-1,), False, "sum of the log-probabilities"),
    TensorRow("kv_cache_reused_block", "INT32", (-1,), False, "KV blocks found in the cache"),
    TensorRow("kv_cache_missed_block", "INT32", (-1,), False, "KV blocks not found in it"),
    TensorRow("kv_cache_alloc_new_blocks", "INT32", (-1,), False, "KV blocks newly taken"),
    TensorRow("kv_cache_alloc_total_blocks", "INT32", (-1,), False, "KV blocks in all"),
    TensorRow("kv_cache_hit_rate", "FP32", (-1,), False, "found share"),
    TensorRow("arrival_time_ns", "INT64", (1,), False, "when the request came"),
    TensorRow("first_scheduled_time_ns", "INT64", (1,), False, "when it first ran"),
    TensorRow("first_token_time_ns", "INT64", (1,), False, "when its first token was there"),
    TensorRow("last_token_time_ns", "INT64", (1,), False, "when its last token was there"),
    TensorRow("acceptance_rate", "FP32", (1,), False, "accepted share of the draft tokens"),
    TensorRow("total_accepted_draft_tokens", "INT32", (1,), False, "draft tokens accepted"),
    TensorRow("total_draft_tokens", "INT32", (1,), False, "draft tokens made"),
    TensorRow("num_output_tokens", "INT32", (-1,), False, "tokens of each sequence so far; ours, not NVIDIA's"),
)


def emit(
    recipe: Recipe,
    out: Path,
    *,
    model_reference: str = "../../checkpoint",
    draft_reference: str | None = None,
    taps: Sequence[int] | None = None,
    adapters_reference: str | None = None,
    adapters: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the repository as the folder ``out``, which must be new or empty; it appears whole or not at all.

    Args:
        model_reference: the checkpoint, seen from the model's folder, or whatever ``LLM(model=…)`` takes.
        draft_reference: the draft model, in the same way.
        taps: layers whose outputs an EAGLE-3 drafter reads, 0-based; None leaves them to TensorRT-LLM.
        adapters_reference: folder that clients' ``lora_path`` is looked for in; None refuses adapters.
        adapters: folders of adapters that are loaded at start.

    Returns:
        Layout, models, and the arguments of ``LLM()``.

    Raises:
        ForgeError: TF-TRI-003, TF-TRI-061/062 (``triton.parameters``), TF-TRI-065/066 (speculation,
            parallelism), TF-TRI-067 (devices and ranks).
    """
    import yaml

    parameters = checked(LAYOUT, "tensorrt_llm", dict(recipe.triton.parameters))
    arguments = llm_arguments(recipe, model_reference, draft=draft_reference, taps=taps, adapters=adapters)
    instances = _instances(parameters["gpu_device_ids"], recipe)
    decoupled = recipe.triton.decoupled
    settings: dict[str, Any] = {"max_batch_size": 0, "decoupled": decoupled, "cancellation_check_period_ms": 100}
    if recipe.build.trtllm.lora is not None and adapters_reference is not None:
        settings["lora_directory"] = adapters_reference
    config = new_config("tensorrt_llm", backend="python", max_batch_size=0, decoupled=decoupled)
    add_tensors(config, _inputs(recipe), OUTPUTS)
    add_cpu_instance(config, instances)
    set_parameters(config, parameters)
    with writing(out) as folder:
        version = folder / "tensorrt_llm" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(print_config(config), encoding="utf-8")
        document = yaml.safe_dump({"triton_config": settings, **arguments}, sort_keys=True, allow_unicode=True)
        (version / "model.yaml").write_text(document, encoding="utf-8")
        ship(_SHIPPED, version)
    return {
        "layout": LAYOUT,
        "model": "tensorrt_llm",
        "models": ["tensorrt_llm"],
        "limits": {name: arguments[name] for name in ("max_batch_size", "max_num_tokens", "max_seq_len")},
        "decoupled": decoupled,
        "arguments": arguments,
    }


def _inputs(recipe: Recipe) -> list[TensorRow]:
    """NVIDIA's inputs, and those that ask for what the recipe turns on."""
    settings = recipe.build.trtllm
    guide = GUIDE_INPUTS if settings.guided_decoding != "none" else ()
    return [*INPUTS, *guide, *(BEAM_INPUTS if settings.max_beam_width > 1 else ())]


def code_files() -> list[Path]:
    """Source files whose content ends up in a repository (for a stage's key)."""
    return sorted(source_of(module) for module in _SHIPPED)


def _instances(devices: str, recipe: Recipe) -> int:
    """Instances of the model: one a set of devices.

    Raises:
        ForgeError: TF-TRI-067 when a set is not as large as the ranks, or two sets share a device.
    """
    if not devices:
        return 1
    ranks = recipe.build.parallel.tp * recipe.build.parallel.pp
    sets = [part.split(",") for part in devices.split(";")]
    every = [device for part in sets for device in part]
    faults = [f"{','.join(part)} has {len(part)}" for part in sets if len(part) != ranks]
    twice = sorted({device for device in every if every.count(device) > 1})
    if faults or twice:
        why = [f"every instance needs tp × pp = {ranks} devices: {'; '.join(faults)}"] if faults else []
        why += [f"device {', '.join(twice)} is in two sets"] if twice else []
        fitting = ";".join(",".join(str(i * ranks + k) for k in range(ranks)) for i in range(len(sets)))
        raise ForgeError(
            "TF-TRI-067",
            "the devices do not fit the ranks",
            asked=f"gpu_device_ids: {devices}",
            numbers={"ranks": ranks, "sets": len(sets)},
            why="; ".join(why),
            remedies=[f"gpu_device_ids: {fitting}"],
        )
    return len(sets)


def in_bundle(recipe: Recipe, engine: Mapping[str, Any], engine_dir: Path, out: Path) -> dict[str, Any]:
    """The repository beside the checkpoint; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    return emit(
        recipe,
        out,
        model_reference="../../engine/checkpoint",
        draft_reference="../../engine/draft" if recipe.speculation.draft else None,
        taps=(engine.get("drafter") or {}).get("taps"),
    )


def by_hand(loaded: LoadedRecipe, source: Path, out: Path, *, name: str, tokenizer: Path | None) -> dict[str, Any]:
    """A repository for a checkpoint that lies somewhere; see :class:`~triton_repo.layouts.modules.LayoutModule`."""
    if not (source / "config.json").is_file() or not any(source.glob("*.safetensors")):
        raise ForgeError(
            "TF-TRI-068",
            "there is no checkpoint",
            asked=str(source),
            why="LLM() loads config.json and safetensors of a Hugging Face checkpoint from that folder",
            remedies=["name the quantized checkpoint's folder"],
        )
    recipe = loaded.recipe
    lora = recipe.build.trtllm.lora
    adapters = [] if lora is None else [_folder(loaded, source) for source in lora.adapters.values()]
    parents = {folder.parent for folder in adapters}
    draft = None if recipe.speculation.draft is None else _folder(loaded, recipe.speculation.draft)
    return emit(
        recipe,
        out,
        model_reference=from_model(source, out, "tensorrt_llm"),
        draft_reference=None if draft is None else from_model(draft, out, "tensorrt_llm"),
        taps=None if draft is None else _taps(recipe, draft, source),
        adapters_reference=from_model(parents.pop(), out, "tensorrt_llm") if len(parents) == 1 else None,
        adapters=[from_model(folder, out, "tensorrt_llm") for folder in adapters],
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
