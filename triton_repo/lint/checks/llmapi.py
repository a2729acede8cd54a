"""Rules on models of the LLM API layout: what ``model.yaml`` must have, Triton's part of it, ranks and speculation."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_repo.lint.engine_models import device_faults
from triton_repo.lint.hits import TRTLLM_LLMAPI, Hit, each_model, hit, hit_file, listed, rule
from triton_repo.lint.llm_arguments import load_arguments
from triton_repo.lint.remedies import Remedy, drop, here, key, key_named, no_key, person, together
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.roles import is_llmapi
from triton_repo.lint.settings import Lines, file_of, has_anchors, parsed, placed
from triton_repo.parameters import load_parameters
from trtforge.ground.names import nearest
from trtforge.rules.sources import SPECULATION
from trtforge.rules.tables import Section

SECTION = Section(100, "The LLM API")

#: keys of ``triton_config`` (https://github.com/NVIDIA/TensorRT-LLM, llmapi/tensorrt_llm/1/model.py)
_TRITON_KEYS = ("max_batch_size", "decoupled", "cancellation_check_period_ms", "multimodal", "lora_directory")


#: those that NVIDIA's model.py reads without a default, and what they are where nothing is meant by them
_NEEDED: Mapping[str, Any] = {"max_batch_size": 0, "decoupled": False}


def _yaml(model: Model) -> tuple[Path, str] | None:
    return file_of(model, "model.yaml")


@rule("TF-TRI-220", "error", "model.yaml cannot be used", TRTLLM_LLMAPI)
@each_model
def model_yaml(model: Model, repository: Repository) -> Iterator[Hit]:
    """Every key but triton_config is an argument of LLM(), and model is the one that it cannot do without."""
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return
    path, text = found
    document, line, problem = parsed(text)
    if problem is not None:
        yield hit_file(model, path, problem, person("a YAML mapping of LLM() arguments"), line)
    elif not isinstance(document, dict):
        yield hit_file(model, path, "it is no mapping", person("model: …"), 1)
    elif not isinstance(document.get("model"), str) or not document["model"].strip():
        remedy = person("model: the checkpoint's folder, or its name on the hub")
        yield hit_file(model, path, "model is missing", remedy, Lines(text).of("model"))


def _settings(model: Model) -> tuple[Path, str, Mapping[str, Any]] | None:
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return None
    document, _, problem = parsed(found[1])
    if problem is not None or not isinstance(document, dict):
        return None
    return found[0], found[1], document


def each_document(
    check: Callable[[Model, Path, str, Mapping[str, Any]], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every ``model.yaml`` that is a mapping: its model, path, text and document."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        found = _settings(model)
        if found is None:
            return
        anchored = has_anchors(found[1])
        for one in check(model, *found):
            # an edit of what other places repeat would change or break those
            yield replace(one, remedies=tuple(person(way.text) for way in one.remedies)) if anchored else one

    return each_model(functools.wraps(check)(checked))


@rule("TF-TRI-224", "error", "a placeholder was left in model.yaml", TRTLLM_LLMAPI)
@each_model
def yaml_placeholder(model: Model, repository: Repository) -> Iterator[Hit]:
    """It is handed to LLM() as it stands."""
    found = _yaml(model) if is_llmapi(model) else None
    if found is None:
        return
    for number, line in enumerate(found[1].split("\n"), start=1):
        plain = line.split("#", 1)[0]
        if HOLE.search(plain):
            yield hit_file(model, found[0], f"{plain.strip()} was never filled in", person("fill it in"), number)


@rule("TF-TRI-221", "error", "triton_config is set wrongly", TRTLLM_LLMAPI)
@each_document
def triton_config(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """It holds Triton's own settings, the model does not batch in Triton, and what config.pbtxt states too cannot be
    changed from there."""
    lines = Lines(text)
    read = _subscripts(model)
    if "triton_config" not in document:
        if "triton_config" in read:
            message = "triton_config is missing: model.py reads it without a default"
            yield hit_file(model, path, message, key(path, dict(_NEEDED), "triton_config"), 1)
        return
    section = document["triton_config"]
    start = lines.of("triton_config")
    if not isinstance(section, dict):
        yield hit_file(model, path, "triton_config is no mapping", key(path, dict(_NEEDED), "triton_config"), start)
        return
    for name, usual in _NEEDED.items():
        if name not in section and name in read:
            message = f"triton_config has no {name}: model.py reads it without a default"
            yield hit_file(model, path, message, key(path, usual, "triton_config", name), start)
    for name in map(str, section):
        if name not in _TRITON_KEYS:
            near = nearest(name, [known for known in _TRITON_KEYS if known not in section])
            gone = no_key(path, "triton_config", name)
            yield hit_file(
                model,
                path,
                f"triton_config has no {name}",
                (key_named(path, near, "triton_config", name, text=near), gone) if near else gone,
                lines.of("triton_config", name),
                "warning",
            )
    if section.get("max_batch_size") not in (0, None):
        message = f"triton_config.max_batch_size is {section['max_batch_size']}: the model takes one request at a time"
        remedy = key(path, 0, "triton_config", "max_batch_size", text="max_batch_size: 0; LLM() batches by itself")
        yield hit_file(model, path, message, remedy, lines.of("triton_config", "max_batch_size"))
    rows = [row for row in load_parameters("llmapi").rows if row.name.startswith("triton_config.")]
    for row in rows:
        name = row.name.partition(".")[2]
        fault = row.fault(str(section[name])) if section.get(name) is not None else None
        if fault:
            remedy = key(path, int(row.default), "triton_config", name)
            yield hit_file(model, path, f"{row.name}: {fault}", remedy, lines.of("triton_config", name))
    stated = bool(model.message.model_transaction_policy.decoupled)
    if "decoupled" in section and model.message.HasField("model_transaction_policy") and section["decoupled"] != stated:
        message = f"decoupled is {str(stated).lower()} here and {str(section['decoupled']).lower()} in model.yaml"
        remedies = [here(str(bool(section["decoupled"])).lower()), drop(model, "model_transaction_policy")]
        yield hit(model, message, remedies, "model_transaction_policy", "decoupled")


def _subscripts(model: Model) -> set[str]:
    """Keys that ``model.py`` reads with brackets, which have no default."""
    tree = model.syntax
    if not isinstance(tree, ast.Module):
        return set()
    return {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    }


@rule("TF-TRI-226", "error", "speculative_config cannot draft", SPECULATION)
@each_document
def yaml_speculation(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """LLM() refuses a decoding_type that it does not have, and one that drafts with a model when none is named."""
    table, lines = load_arguments(), Lines(text)
    arguments = placed(document, table)
    entry = arguments.get("speculative_config")
    section = entry.value if entry is not None else None
    if entry is None or not isinstance(section, dict):
        return
    place = (*entry.path, "decoding_type")
    kind = section.get("decoding_type")
    line = lines.of(*place)
    row = table.decoding_types.get(str(kind))
    none = no_key(path, *entry.path, text="no speculative_config")
    if kind in table.engine_decoding_types:
        remedies = [person("decoding_type: Eagle3 with its draft, or NGram"), none]
        yield hit_file(model, path, f"decoding_type {kind} ran on engines only", remedies, line)
    elif row is None:
        near = nearest(str(kind), table.decoding_types) if "decoding_type" in section else None
        what = f"there is no decoding_type {kind!r}" if "decoding_type" in section else "decoding_type is missing"
        drafts = bool(section.get("speculative_model") or section.get("speculative_model_dir"))
        ways: list[Remedy] = []
        if near and table.decoding_types[near].draft and not drafts:
            ways = [person(f"decoding_type: {near}, with speculative_model: the draft's folder")]
        elif near:
            ways = [key(path, near, *place)]
        yield hit_file(model, path, what, [*ways, person("one of " + listed(table.decoding_types)), none], line)
    elif row.draft and not (section.get("speculative_model") or section.get("speculative_model_dir")):
        message = f"decoding_type {kind} drafts with a model, and none is named"
        yield hit_file(model, path, message, (person("speculative_model: the draft's folder"), none), line)
    sizes = {name: arguments[name].value if name in arguments else 1 for name in _RANKS}
    pipeline = sizes["pipeline_parallel_size"]
    if type(pipeline) is int and pipeline > 1 and kind != "SaveState":
        tensor = sizes["tensor_parallel_size"]
        ranks = pipeline * tensor if type(tensor) is int else pipeline
        at = {name: arguments[name].path if name in arguments else (name,) for name in _RANKS}
        one = key(path, 1, *at["pipeline_parallel_size"])
        message = f"speculation with pipeline_parallel_size {pipeline}"
        remedies = [together(one, key(path, ranks, *at["tensor_parallel_size"])), none]
        yield hit_file(model, path, message, remedies, lines.of(*at["pipeline_parallel_size"]))


@rule("TF-TRI-222", "error", "the LLM API model's GPUs do not go with its instances or ranks", TRTLLM_LLMAPI)
@each_document
def llmapi_devices(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """Each instance takes one set of GPUs, as many as tensor_parallel_size × pipeline_parallel_size."""
    arguments = placed(document, load_arguments())
    sizes = [arguments[name].value if name in arguments else 1 for name in _RANKS]
    wrong = [name for name, size in zip(_RANKS, sizes, strict=True) if type(size) is not int or size < 1]
    if not wrong:
        yield from device_faults(model, sizes[0] * sizes[1])
        return
    message = f"tensor_parallel_size {sizes[0]!r}, pipeline_parallel_size {sizes[1]!r}"
    remedy = together(*(key(path, _whole(arguments[name].value), *arguments[name].path) for name in wrong))
    yield hit_file(model, path, message, remedy, Lines(text).of(*arguments[wrong[0]].path))


_RANKS = ("tensor_parallel_size", "pipeline_parallel_size")


def _whole(size: object) -> int:
    """The number that a text meant; 1 where it meant none."""
    text = str(size).strip()
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 6 else 1
