"""An engine's repository as one model of the LLM API, for TensorRT-LLM 1.3 and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triton_repo.callers import calls
from triton_repo.copying import copy_repository
from triton_repo.history import Counterpart, load_history
from triton_repo.layouts import llmapi
from triton_repo.lint.hits import listed
from triton_repo.lint.repository import Engine, Model, Repository
from triton_repo.lint.roles import Chain, device_sets
from triton_repo.upgrade_report import Upgrade
from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import read_yaml
from trtforge.recipe.schema import Recipe
from trtforge.targets import served_by

#: what clients of the ensemble sent, and what they send to the LLM API's model
CLIENT_NAMES = {
    "max_tokens": "sampling_param_max_tokens",
    "temperature": "sampling_param_temperature",
    "top_k": "sampling_param_top_k",
    "top_p": "sampling_param_top_p",
    "stop_words": "sampling_param_stop",
    "random_seed": "sampling_param_seed",
    "presence_penalty": "sampling_param_presence_penalty",
    "frequency_penalty": "sampling_param_frequency_penalty",
    "exclude_input_in_output": "sampling_param_exclude_input_from_output",
    "return_perf_metrics": "sampling_param_return_perf_metrics",
    "stream": "streaming",
}


def write_llmapi(repository: Repository, models: Chain, target: Path, result: Upgrade, checkpoint: str | None) -> None:
    """Write the repository below ``target``, an empty folder: the one model, and every model beside the chain.

    Raises:
        ForgeError: TF-TRI-245 when the checkpoint is not known, TF-TRI-246 when there is not one engine.
    """
    import yaml

    if len(models.engines) != 1:
        raise ForgeError(
            "TF-TRI-246",
            f"{len(models.engines)} engines cannot become one model",
            asked=", ".join(engine.name for engine in models.engines),
            why="A draft model is set by speculative_config, other models get a repository each.",
            remedies=["a repository with one engine, upgraded by itself"],
        )
    engine = models.engines[0]
    model_reference = checkpoint or _tokenizer(models)
    if model_reference is None:
        raise ForgeError(
            "TF-TRI-245",
            "the LLM API loads a checkpoint, and none is known",
            asked=str(repository.root),
            why="There is no engine any more, and no tokenizer_dir says where the checkpoint is.",
            remedies=["--checkpoint DIR"],
        )
    if checkpoint is None:
        result.say(
            "tensorrt_llm", "left", f"model: {model_reference}", "taken from tokenizer_dir; are the weights there?"
        )
    decoupled = bool(engine.message.model_transaction_policy.decoupled)
    gone = _gone(models, repository)
    copy_repository(repository.root, target, result, gone)
    name = _name(repository, engine, gone)
    emitted = target / ".emitted"
    llmapi.emit(_recipe(engine, decoupled), emitted, model_reference=model_reference)
    (emitted / "tensorrt_llm").rename(target / name)
    emitted.rmdir()
    if name != "tensorrt_llm":
        config = target / name / "config.pbtxt"
        text = config.read_text(encoding="utf-8").replace('name: "tensorrt_llm"', f'name: "{name}"', 1)
        config.write_text(text, encoding="utf-8")
    path = target / name / "1" / "model.yaml"
    settings = read_yaml(path)["triton_config"]
    document = {"triton_config": settings, **_arguments(engine, model_reference, result, settings)}
    path.write_text(yaml.safe_dump(document, sort_keys=True, allow_unicode=True), encoding="utf-8")
    result.say(name, "rewritten", "one model of the LLM API", f"in place of {', '.join(sorted(gone))}")
    _others(repository, gone, name, result)
    _clients(repository, gone, result)


def _tokenizer(models: Chain) -> str | None:
    return next((t for m in models.preprocessing if (t := m.parameter("tokenizer_dir")) is not None), None)


def _gone(models: Chain, repository: Repository) -> set[str]:
    """The models that the one model replaces: those of the chain, and ensembles that hold nothing else."""
    gone = {model.name for model in models.all}
    ensembles = [model for model in repository.models.values() if model.is_ensemble]
    while True:
        more = {
            model.name
            for model in ensembles
            if {step.model_name for step in model.message.ensemble_scheduling.step} <= gone and model.name not in gone
        }
        if not more:
            return gone
        gone |= more


def _name(repository: Repository, engine: Model, gone: set[str]) -> str:
    """What the one model is called: as NVIDIA's is, unless a model that stays has that name."""
    taken = "tensorrt_llm" in repository.models and "tensorrt_llm" not in gone
    return engine.name if taken else "tensorrt_llm"


def _others(repository: Repository, gone: set[str], name: str, result: Upgrade) -> None:
    """Say of every model that stays that it does, and which of them ask a model that is no more."""
    asking: dict[str, list[str]] = {}
    for replaced in sorted(gone):
        for call in calls(repository, repository.models[replaced]):
            if call.caller.name not in gone:
                with_ = f" with {listed(call.tensors)}" if call.tensors else ""
                asking.setdefault(call.caller.name, []).append(f"{call.where} asks {replaced}{with_}")
    for model in sorted(repository.models):
        if model in gone:
            continue
        result.say(model, "copied", "the whole model", "as it is; it is none of the engine's chain")
        if model in asking:
            takes = "text_input and sampling_param_* (no token ids)"
            meaning = f"{'; '.join(asking[model])}: {name} takes {takes} and gives text_output, change the call"
            result.say(model, "left", "its calls", meaning)


def _recipe(engine: Model, decoupled: bool) -> Recipe:
    """A recipe that says of the layout what the old repository said."""
    tp, pp = _ranks(engine)
    devices = engine.parameter("gpu_device_ids")
    return Recipe.model_validate(
        {
            "name": "upgraded",
            "model": {"source": "hf:upgraded/repository"},
            "build": {"target": served_by("llmapi")[0], "parallel": {"tp": tp, "pp": pp}},
            "triton": {
                "layout": "llmapi",
                "decoupled": decoupled,
                "parameters": {"gpu_device_ids": devices} if devices is not None else {},
            },
        }
    )


def _ranks(engine: Model) -> tuple[int, int]:
    """Tensor- and pipeline-parallel ranks: the engine's, else as many as a set of GPUs has."""
    built: Engine | None = engine.engine
    if built is not None and built.world_size is not None:
        return int(built.mapping["tp_size"]), int(built.mapping.get("pp_size", 1))
    stated = engine.parameter("gpu_device_ids")
    sets = device_sets(stated) if stated is not None else None
    return (len(sets[0]) if sets else 1), 1


def _arguments(engine: Model, model: str, result: Upgrade, settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of LLM() that the old parameters and the engine's limits become."""
    tp, pp = _ranks(engine)
    document: dict[str, Any] = {"model": model, "backend": "pytorch", "tensor_parallel_size": tp}
    document["pipeline_parallel_size"] = pp
    table = load_history().llmapi
    for name in sorted(engine.message.parameters):
        value = engine.parameter(name)
        if value is None:
            continue
        counterpart = table.get(name)
        if counterpart is None or counterpart.to is None:
            why = counterpart.why if counterpart is not None else "it is not known to LLM()"
            result.say(engine.name, "left", f"{name}: {value}", f"no counterpart: {why}")
        elif counterpart.to.startswith("parameters."):
            result.say(engine.name, "kept", f"{name}: {value}", "the same parameter")
        else:
            _put(document, settings, name, value, counterpart, engine, result)
    built = engine.engine
    for limit in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        number = built.limit(limit) if built is not None else None
        if number is not None:
            document[limit] = number
            result.say(engine.name, "kept", f"{limit}: {number}", "the engine's limit, now an argument")
    if built is None:
        meaning = "the engine cannot be read here: max_batch_size, max_num_tokens and max_seq_len are LLM()'s defaults"
        result.say(engine.name, "left", "limits", meaning)
    return document


def _put(
    document: dict[str, Any],
    settings: dict[str, Any],
    name: str,
    value: str,
    counterpart: Counterpart,
    engine: Model,
    result: Upgrade,
) -> None:
    assert counterpart.to is not None
    try:
        converted = _converted(value, counterpart)
    except ValueError:
        result.say(engine.name, "left", f"{name}: {value}", f"{counterpart.to} takes another kind of value")
        return
    section, _, key = counterpart.to.rpartition(".")
    place = settings if section == "triton_config" else document.setdefault(section, {}) if section else document
    place[key] = converted
    result.say(engine.name, "renamed", f"{name} → {counterpart.to}", f"{value} → {converted}")


def _converted(value: str, counterpart: Counterpart) -> Any:
    kind = counterpart.as_
    if kind == "integer":
        return int(value)
    if kind == "integers":
        return [int(part) for part in value.split(",")]
    if kind == "number":
        return float(value)
    if kind == "boolean":
        if value.lower() not in ("true", "false", "1", "0"):
            raise ValueError(value)
        return value.lower() in ("true", "1")
    if kind == "list":
        return [value]
    return value.upper() if kind == "upper" else value


def _clients(repository: Repository, gone: set[str], result: Upgrade) -> None:
    """What clients of an ensemble that is replaced must send under another name, and what they cannot send any more."""
    for model in repository.models.values():
        if not model.is_ensemble or model.name not in gone:
            continue
        inputs = [row.name for row in model.message.input]
        renamed = [f"{name} → {CLIENT_NAMES[name]}" for name in inputs if name in CLIENT_NAMES]
        known = {row.name for row in llmapi.INPUTS}
        lost = [name for name in inputs if name not in CLIENT_NAMES and name not in known]
        if renamed:
            result.say("clients", "left", ", ".join(renamed), f"clients of {model.name} send other names")
        if lost:
            result.say("clients", "left", ", ".join(lost), "the LLM API's model has no such input")
