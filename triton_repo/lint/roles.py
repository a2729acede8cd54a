"""Which part a model plays in a TensorRT-LLM repository, told by what it declares and not by its name."""

from __future__ import annotations

from dataclasses import dataclass

from triton_repo.lint.repository import Model, Repository

#: what a TensorRT-LLM model does with memory when nothing is said
DEFAULT_FRACTION = 0.9


def is_engine_model(model: Model) -> bool:
    """A model that runs a TensorRT-LLM engine (backend tensorrtllm, or the python one with its parameters)."""
    if not model.readable or model.is_ensemble:
        return False
    if model.backend == "tensorrtllm":
        return True
    return "gpt_model_path" in model.message.parameters and "gpt_model_type" in model.message.parameters


def is_bls(model: Model) -> bool:
    """TensorRT-LLM's BLS model: it asks the other three in turn."""
    if not model.readable or model.is_ensemble or model.backend != "python":
        return False
    known = {"accumulate_tokens", "tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"}
    return bool(known & set(model.message.parameters)) or model.name == "tensorrt_llm_bls"


def is_preprocessing(model: Model) -> bool:
    return _has(model, "output", "INPUT_ID") and _has(model, "input", "QUERY")


def is_postprocessing(model: Model) -> bool:
    return _has(model, "input", "TOKENS_BATCH") and _has(model, "output", "OUTPUT")


def is_llmapi(model: Model) -> bool:
    """TensorRT-LLM's LLM API: a python model with ``model.yaml`` beside ``model.py``."""
    return (
        model.readable
        and model.backend == "python"
        and any(v.names is not None and {"model.yaml", "model.py"} <= v.names for v in model.versions)
    )


def is_vllm(model: Model) -> bool:
    return model.readable and model.backend == "vllm"


def _has(model: Model, side: str, name: str) -> bool:
    return model.readable and not model.is_ensemble and any(row.name == name for row in getattr(model.message, side))


def role(model: Model) -> str | None:
    """The name under which the parameter table knows the model; None for any other model."""
    if is_engine_model(model):
        return "tensorrt_llm"
    if is_bls(model):
        return "tensorrt_llm_bls"
    if is_preprocessing(model):
        return "preprocessing"
    if is_postprocessing(model):
        return "postprocessing"
    return None


@dataclass(frozen=True)
class Chain:
    """The TensorRT-LLM models of a repository by role; a role may have several."""

    engines: list[Model]
    bls: list[Model]
    preprocessing: list[Model]
    postprocessing: list[Model]

    @property
    def all(self) -> list[Model]:
        return [*self.engines, *self.bls, *self.preprocessing, *self.postprocessing]


def chain(repository: Repository) -> Chain:
    """The TensorRT-LLM models of the repository."""
    by_role: dict[str, list[Model]] = {}
    for model in repository.models.values():
        found = role(model)
        if found is not None:
            by_role.setdefault(found, []).append(model)
    return Chain(
        by_role.get("tensorrt_llm", []),
        by_role.get("tensorrt_llm_bls", []),
        by_role.get("preprocessing", []),
        by_role.get("postprocessing", []),
    )


def flag(model: Model, name: str) -> bool | None:
    """A boolean parameter as TensorRT-LLM reads it; None when it is not set or cannot be read."""
    text = model.parameter(name)
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower()) if text is not None else None


def number(model: Model, name: str) -> float | None:
    """A numeric parameter; None when it is not set or is no number."""
    text = model.parameter(name)
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def device_sets(text: str) -> list[list[int]] | None:
    """``0,1;2,3`` as lists of GPU ids; None when it is not of that form."""
    try:
        return [[int(part) for part in group.split(",")] for group in text.split(";")]
    except ValueError:
        return None
