"""Rules on models of the LLM API layout (``model.yaml``) and of the vLLM backend (``model.json``)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_repo.lint.engine_models import device_faults
from triton_repo.lint.llm_arguments import Arguments, aliases_grow, keys_twice, load_arguments
from triton_repo.lint.names import nearest
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.roles import is_llmapi, is_vllm
from triton_repo.lint.rules import (
    TRTLLM_LLMAPI,
    VLLM_BACKEND,
    Hit,
    each_model,
    hit,
    hit_file,
    listed,
    rule,
    thread,
)
from triton_repo.parameters import load_parameters

#: keys of ``triton_config`` (https://github.com/NVIDIA/TensorRT-LLM, llmapi/tensorrt_llm/1/model.py)
_TRITON_KEYS = ("max_batch_size", "decoupled", "cancellation_check_period_ms", "multimodal", "lora_directory")


def _yaml(model: Model) -> tuple[Path, str] | None:
    for version in model.versions:
        if version.names is not None and "model.yaml" in version.names:
            path = version.folder / "model.yaml"
            text = model.read(path)
            return (path, text) if text is not None else None
    return None


def _document(text: str) -> tuple[Any, int, str | None]:
    """(document, line, problem) of a YAML text; aliases may not make a small file a large document."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=loader)):
            problem = aliases_grow(yaml.compose(text, Loader=loader))
            if problem is not None:
                return None, 1, problem
        return yaml.load(text, Loader=loader), 1, None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it does not parse"
        return None, (mark.line + 1) if mark is not None else 1, str(problem)
    except (RecursionError, ValueError) as error:
        return None, 1, str(error) or "it is nested too deeply"


def _line(text: str, key: str, after: int = 0) -> int:
    """The line of a key of a YAML or JSON text, from 1; 1 when it is not there."""
    for number, line in enumerate(text.split("\n"), start=1):
        plain = line.strip().strip("\"'")
        if number > after and (plain.startswith((f"{key}:", f'{key}"', f"{key} :"))):
            return number
    return 1


@rule(
    "TF-TRI-220",
    "error",
    "model.yaml cannot be used",
    why="Every key but triton_config is an argument of LLM(), and model is the one that it cannot do without.",
    source=TRTLLM_LLMAPI,
)
@each_model
def model_yaml(model: Model, repository: Repository) -> Iterator[Hit]:
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return
    path, text = found
    document, line, problem = _document(text)
    if problem is not None:
        yield hit_file(model, path, problem, "a YAML mapping of LLM() arguments", line)
    elif not isinstance(document, dict):
        yield hit_file(model, path, "it is no mapping", "model: …", 1)
    elif not isinstance(document.get("model"), str) or not document["model"].strip():
        yield hit_file(model, path, "model is missing", "model: meta-llama/Llama-3.1-8B", _line(text, "model"))


def _settings(model: Model) -> tuple[Path, str, Mapping[str, Any]] | None:
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return None
    document, _, problem = _document(found[1])
    if problem is not None or not isinstance(document, dict):
        return None
    return found[0], found[1], document


def each_document(
    check: Callable[[Model, Path, str, Mapping[str, Any]], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every ``model.yaml`` that is a mapping: its model, path, text and document."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        found = _settings(model)
        if found is not None:
            yield from check(model, *found)

    return each_model(functools.wraps(check)(checked))


@rule(
    "TF-TRI-224",
    "error",
    "a placeholder was left in model.yaml",
    why="It is handed to LLM() as it stands.",
    source=TRTLLM_LLMAPI,
)
@each_model
def yaml_placeholder(model: Model, repository: Repository) -> Iterator[Hit]:
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return
    for number, line in enumerate(found[1].split("\n"), start=1):
        plain = line.split("#", 1)[0]
        if HOLE.search(plain):
            yield hit_file(model, found[0], f"{plain.strip()} was never filled in", "fill it in", number)


@rule(
    "TF-TRI-221",
    "error",
    "triton_config is set wrongly",
    why="It holds Triton's own settings, the model does not batch in Triton, and what config.pbtxt states too "
    "cannot be changed from there.",
    source=TRTLLM_LLMAPI,
)
@each_document
def triton_config(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    section = document.get("triton_config")
    if section is None:
        return
    start = _line(text, "triton_config")
    if not isinstance(section, dict):
        yield hit_file(model, path, "triton_config is no mapping", "triton_config: {max_batch_size: 0}", start)
        return
    for key in section:
        if key not in _TRITON_KEYS:
            near = nearest(str(key), _TRITON_KEYS)
            yield hit_file(
                model,
                path,
                f"triton_config has no {key}",
                f"{near}" if near else "one of " + ", ".join(_TRITON_KEYS),
                _line(text, str(key), start),
                "warning",
            )
    if section.get("max_batch_size") not in (0, None):
        yield hit_file(
            model,
            path,
            f"triton_config.max_batch_size is {section['max_batch_size']}: the model takes one request at a time",
            "max_batch_size: 0; LLM() batches by itself",
            _line(text, "max_batch_size", start),
        )
    stated = bool(model.message.model_transaction_policy.decoupled)
    if "decoupled" in section and model.message.HasField("model_transaction_policy") and section["decoupled"] != stated:
        yield hit(
            model,
            f"decoupled is {str(stated).lower()} here and {str(section['decoupled']).lower()} in model.yaml",
            f"decoupled: {str(bool(section['decoupled'])).lower()}, or no model_transaction_policy",
            "model_transaction_policy",
            "decoupled",
        )


@rule(
    "TF-TRI-223",
    "error",
    "a key of model.yaml is misspelt or removed",
    why="LLM() refuses arguments that it does not have.",
    source="https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html",
)
@each_document
def yaml_keys(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    table = load_arguments()
    for key, line, first in keys_twice(text):
        message = f"{key} is set a second time (first in line {first}); the last one holds"
        yield hit_file(model, path, message, "keep one of the two", line)
    for section, known in table.known.items():
        inner = document.get(section) if section else document
        if not isinstance(inner, dict):
            continue
        after = _line(text, section) if section else 0
        removed = table.removed.get(section, {})
        for key in inner:
            line = _line(text, str(key), after)
            near = nearest(str(key), known, cutoff=0.85) if key not in known else None
            if key in removed:
                yield hit_file(model, path, f"{key} is no argument any more", removed[key], line)
            elif not section and key in table.engine_only:
                message = f"{key} was for engines; the PyTorch backend does not have it"
                yield hit_file(model, path, message, f"leave {key} out", line)
            elif not section and (home := _home(table, str(key), known)) is not None:
                message = f"{key} is an argument of {home}, not of LLM()"
                yield hit_file(model, path, message, f"{home}: {{{key}: …}}", line)
            elif near is not None:
                yield hit_file(model, path, f"{key} is no argument; {near} is", f"{near}: …", line)
            elif key not in known and document.get("backend") != "_autodeploy":
                # a release later than the table may have it, and AutoDeploy has arguments of its own
                message = f"{key} is no argument of {section or 'LLM()'} that is known ({table.as_of})"
                yield hit_file(model, path, message, f"leave {key} out", line, "note" if section else "warning")
    if str(document.get("backend", "pytorch")) not in ("pytorch", "_autodeploy"):
        yield hit_file(
            model,
            path,
            f"backend {document['backend']!r}: engines are not run since 1.3",
            "backend: pytorch",
            _line(text, "backend"),
        )


@rule(
    "TF-TRI-226",
    "error",
    "speculative_config cannot draft",
    why="LLM() refuses a decoding_type that it does not have, and one that drafts with a model when none is named.",
    source="https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html",
)
@each_document
def yaml_speculation(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    section = document.get("speculative_config")
    if not isinstance(section, dict):
        return
    table = load_arguments()
    start = _line(text, "speculative_config")
    kind = section.get("decoding_type")
    line = _line(text, "decoding_type", start - 1) if "decoding_type" in section else start
    row = table.decoding_types.get(str(kind))
    if kind in table.engine_decoding_types:
        yield hit_file(
            model, path, f"decoding_type {kind} ran on engines only", "decoding_type: Eagle3, or NGram", line
        )
    elif row is None:
        near = nearest(str(kind), table.decoding_types)
        what = f"there is no decoding_type {kind!r}" if "decoding_type" in section else "decoding_type is missing"
        yield hit_file(
            model, path, what, f"decoding_type: {near}" if near else "one of " + listed(table.decoding_types), line
        )
    elif row.draft and not (section.get("speculative_model") or section.get("speculative_model_dir")):
        message = f"decoding_type {kind} drafts with a model, and none is named"
        yield hit_file(model, path, message, "speculative_model: the draft's folder", line)
    pipeline = document.get("pipeline_parallel_size", 1)
    if isinstance(pipeline, int) and pipeline > 1 and kind != "SaveState":
        yield hit_file(
            model,
            path,
            f"speculation with pipeline_parallel_size {pipeline}",
            "pipeline_parallel_size: 1",
            _line(text, "pipeline_parallel_size"),
        )


@rule(
    "TF-TRI-222",
    "error",
    "the LLM API model's GPUs do not go with its instances or ranks",
    why="Each instance takes one set of GPUs, as many as tensor_parallel_size × pipeline_parallel_size.",
    source=TRTLLM_LLMAPI,
)
@each_document
def llmapi_devices(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    sizes = [document.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    if all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        yield from device_faults(model, sizes[0] * sizes[1])
    else:
        yield hit_file(
            model,
            path,
            f"tensor_parallel_size {sizes[0]!r}, pipeline_parallel_size {sizes[1]!r}",
            "whole numbers of at least 1",
            _line(text, "tensor_parallel_size"),
        )


@rule(
    "TF-TRI-225",
    "error",
    "a value of model.yaml is outside its range",
    why="LLM() checks its arguments and refuses to start.",
    source="https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
)
@each_document
def yaml_values(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    for row in load_parameters("llmapi").rows:
        if row.place != "yaml" or row.kind not in ("integer", "fraction", "share", "boolean"):
            continue
        parts = row.name.split(" ")[0].split(".")
        value: Any = document
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        if value is None or parts[-1].endswith("parallel_size"):
            continue
        spoken = str(value).lower() if isinstance(value, bool) else str(value)
        fault = row.fault(spoken)
        if fault:
            after = _line(text, parts[0]) if len(parts) > 1 else 0
            yield hit_file(
                model, path, f"{'.'.join(parts)}: {fault}", row.allowed, _line(text, parts[-1], after and after - 1)
            )


def _vllm(model: Model) -> tuple[Path, str] | None:
    for version in model.versions:
        if version.names is not None and "model.json" in version.names:
            path = version.folder / "model.json"
            text = model.read(path)
            return (path, text) if text is not None else None
    return None


@rule(
    "TF-TRI-230",
    "error",
    "model.json of the vLLM backend cannot be used",
    why="It holds the engine's arguments as one JSON object; model is the one that it cannot do without.",
    source=VLLM_BACKEND,
)
@each_model
def vllm_json(model: Model, repository: Repository) -> Iterator[Hit]:
    if not is_vllm(model) or not model.versions or any(version.names is None for version in model.versions):
        return
    if not any(version.names and "model.json" in version.names for version in model.versions):
        yield hit(model, "no version has a model.json", '1/model.json with {"model": "…"}', "backend")
        return
    found = _vllm(model)
    if found is None:
        return
    path, text = found
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield hit_file(model, path, f"{error}", "one JSON object", getattr(error, "lineno", 1))
        return
    if not isinstance(document, dict) or not isinstance(document.get("model"), str) or not document["model"]:
        yield hit_file(model, path, "model is missing", '"model": "facebook/opt-125m"', 1)
        return
    share = document.get("gpu_memory_utilization")
    if share is not None and not (isinstance(share, (int, float)) and 0 < share <= 1):
        yield hit_file(
            model,
            path,
            f"gpu_memory_utilization is {share!r}",
            '"gpu_memory_utilization": 0.9',
            _line(text, "gpu_memory_utilization"),
        )
    size = document.get("tensor_parallel_size", 1)
    if isinstance(size, int) and size > 1:
        for index, group in enumerate(model.message.instance_group):
            if group.Kind.Name(group.kind) == "KIND_GPU":
                yield hit(
                    model,
                    f"tensor_parallel_size {size} with KIND_GPU: each instance sees one GPU",
                    "kind: KIND_MODEL",
                    "instance_group",
                    index,
                    "kind",
                )


def _home(table: Arguments, key: str, known: Collection[str]) -> str | None:
    """The one section of ``model.yaml`` that a key of its top belongs to."""
    homes = [section for section, names in table.known.items() if section and key in names]
    return homes[0] if len(homes) == 1 and key not in known else None


@rule(
    "TF-TRI-231",
    "note",
    "vLLM's instances on one GPU take more than there is",
    why="gpu_memory_utilization is a share of the whole GPU, 0.9 when nothing is said; together they must fit. "
    "Instances of KIND_MODEL all start on the first GPU.",
    source=thread("TS#6855"),
)
def vllm_memory(repository: Repository) -> Iterator[Hit]:
    shares: list[tuple[Model, Path, str, float, int]] = []
    for model in repository.models.values():
        found = _vllm(model) if is_vllm(model) else None
        if found is None:
            continue
        try:
            document = json.loads(found[1])
        except (ValueError, RecursionError):
            continue
        share = document.get("gpu_memory_utilization", 0.9) if isinstance(document, dict) else None
        kinds = {group.Kind.Name(group.kind) for group in model.message.instance_group}
        pinned = any(group.gpus for group in model.message.instance_group)
        if isinstance(share, (int, float)) and not pinned and ("KIND_MODEL" in kinds or not kinds):
            instances = sum(max(group.count, 1) for group in model.message.instance_group) or 1
            shares.append((model, found[0], found[1], float(share), instances))
    total = sum(share * instances for *_, share, instances in shares)
    count = sum(instances for *_, instances in shares)
    if count > 1 and total > 1:
        model, path, text, *_ = shares[-1]
        yield hit_file(
            model,
            path,
            ", ".join(f"{m.name} {share:g}" + (f" × {n}" if n > 1 else "") for m, _, _, share, n in shares)
            + f" are {total:g} of one GPU",
            f"{0.9 / count:.2f} each, or a GPU of its own for each",
            _line(text, "gpu_memory_utilization"),
        )
