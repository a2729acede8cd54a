"""Rules on models of the vLLM backend: ``model.json`` holds the arguments of its ``AsyncEngineArgs``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_repo.lint.hits import VLLM_BACKEND, Hit, each_model, hit, hit_file, rule
from triton_repo.lint.remedies import Remedy, here, key, key_named, no_key, person, together
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.roles import is_vllm
from triton_repo.lint.settings import Lines, file_of
from triton_repo.lint.vllm_arguments import Gone, VllmArguments, fits, kind_of, load_vllm_arguments, meant
from trtforge.ground.names import nearest
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(130, "vLLM")

_CODE = f"{VLLM_BACKEND}/blob/main/src/model.py"


def _vllm(model: Model) -> tuple[Path, str] | None:
    return file_of(model, "model.json")


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object of a text; None where it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def each_arguments(
    check: Callable[[Model, Path, Lines, dict[str, Any]], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every ``model.json`` that is an object: its model, path, lines and content."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        found = _vllm(model) if is_vllm(model) else None
        document = _object(found[1]) if found is not None else None
        if found is not None and document is not None:
            yield from check(model, found[0], Lines(found[1]), document)

    return each_model(functools.wraps(check)(checked))


@rule("TF-TRI-230", "error", "model.json of the vLLM backend cannot be used", VLLM_BACKEND)
@each_model
def vllm_json(model: Model, repository: Repository) -> Iterator[Hit]:
    """It holds the engine's arguments as one JSON object; model is the one that it cannot do without."""
    if not is_vllm(model) or not model.versions or any(version.names is None for version in model.versions):
        return
    if not any(version.names and "model.json" in version.names for version in model.versions):
        remedy = person('1/model.json with {"model": "…"}')
        yield hit(model, "no version has a model.json", remedy, "backend")
        return
    found = _vllm(model)
    if found is None:
        return
    path, text = found
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield hit_file(model, path, f"{error}", person("one JSON object"), getattr(error, "lineno", 1))
        return
    if not isinstance(document, dict) or not isinstance(document.get("model"), str) or not document["model"]:
        yield hit_file(model, path, "model is missing", person('"model": "facebook/opt-125m"'), 1)
        return
    lines = Lines(text)
    share = document.get("gpu_memory_utilization")
    if isinstance(share, (int, float)) and not isinstance(share, bool) and not 0 < share <= 1:
        message = f"gpu_memory_utilization is {share!r}: a share of the GPU, over 0 and up to 1"
        remedy = key(path, share / 100 if 1 < share <= 100 else 0.9, "gpu_memory_utilization")
        yield hit_file(model, path, message, remedy, lines.of("gpu_memory_utilization"))
    sizes = [document.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    ranks = sizes[0] * sizes[1] if all(type(size) is int for size in sizes) else 1
    if ranks > 1:
        for index, group in enumerate(model.message.instance_group):
            if group.Kind.Name(group.kind) == "KIND_GPU":
                message = f"{ranks} ranks with KIND_GPU: each instance sees one GPU"
                yield hit(model, message, here("KIND_MODEL"), "instance_group", index, "kind")
    if str(document.get("enable_lora")).lower() == "true" and not (path.parent / "multi_lora.json").exists():
        remedies = (person('1/multi_lora.json with {"NAME": "folder of the adapter"}'), no_key(path, "enable_lora"))
        message = "enable_lora, and no multi_lora.json beside it: the backend does not load"
        yield hit_file(model, path, message, remedies, lines.of("enable_lora"))


@rule("TF-TRI-251", "error", "an argument of model.json is misspelt or gone", thread("VL#23283"))
@each_arguments
def vllm_names(model: Model, path: Path, lines: Lines, document: dict[str, Any]) -> Iterator[Hit]:
    """The backend hands every key to AsyncEngineArgs, which raises on a name that it does not have: the model does not
    load. A name that went lately is a warning, since containers in use still have it."""
    table = load_vllm_arguments()
    for name in document:
        line = lines.of(name)
        gone = table.removed.get(name)
        if gone is not None:
            message = f"{name} is gone since vLLM {gone.gone} ({gone.last} had it)"
            remedy = _instead(name, gone, path, document)
            yield hit_file(model, path, message, remedy, line, None if table.is_error(gone) else "warning")
        elif name not in table.kinds:
            near = nearest(name, [known for known in table.kinds if known not in document], cutoff=0.75)
            read = f"{table.releases[0]} to {table.releases[-1]}"
            yield hit_file(
                model,
                path,
                f"{name} is no argument; {near} is" if near else f"{name} is an argument of no vLLM read ({read})",
                (key_named(path, near, name), no_key(path, name)) if near else no_key(path, name),
                line,
            )


def _instead(name: str, gone: Gone, path: Path, document: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """What to set in place of a name that is gone."""
    value, leave = document[name], no_key(path, name)
    if gone.inverse is not None and isinstance(value, bool):
        if gone.inverse in document:
            return (leave,)
        return (together(leave, key(path, not value, gone.inverse), text=_json(gone.inverse, not value)), leave)
    place = tuple((gone.to or "").split(".")) if gone.to else ()
    takes = load_vllm_arguments().kinds.get(place[0], ()) if len(place) == 1 else ()
    if place and _free(document, place) and fits(value, takes):
        return (together(leave, key(path, value, *place), text=_json(".".join(place), value)), leave)
    if gone.says is not None:
        return (leave, person(gone.says))
    return (leave,)


def _free(document: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    """Whether a key can be set there: it is not there, and what is above it, if anything, is an object."""
    value: Any = document
    for part in place:
        if not isinstance(value, dict):
            return False
        if part not in value:
            return True
        value = value[part]
    return False


def _json(name: str, value: Any) -> str:
    """A setting as ``model.json`` states it; a dotted name opens objects."""
    text = json.dumps(value, ensure_ascii=False)
    parts = name.split(".")
    for part in reversed(parts[1:]):
        text = f'{{"{part}": {text}}}'
    return f'"{parts[0]}": {text}'


@rule("TF-TRI-252", "error", "an argument of model.json has a value of another kind", _CODE)
@each_arguments
def vllm_values(model: Model, path: Path, lines: Lines, document: dict[str, Any]) -> Iterator[Hit]:
    """AsyncEngineArgs takes values as they are: a number in quotes is a text, any text counts as true, and what is none
    of an argument's values ends the load."""
    table: VllmArguments = load_vllm_arguments()
    for name, value in document.items():
        kinds = table.kinds.get(name, ())
        if name == "model" or fits(value, kinds):
            yield from _values(model, path, lines, table, name, value)
            continue
        wanted, better = " or ".join(kinds), meant(value, kinds)
        # NVIDIA's own tutorial writes "enforce_eager": "true", and any text is true to Python
        harmless = "boolean" in kinds and better is True
        yield hit_file(
            model,
            path,
            f"{name} is {json.dumps(value, ensure_ascii=False)[:60]}, a {kind_of(value)}; {wanted} is wanted"
            + (": the text counts as true" if isinstance(value, str) and "boolean" in kinds else ""),
            key(path, better, name) if better is not None else no_key(path, name, text=f"a {wanted}, or leave it out"),
            lines.of(name),
            "note" if harmless else None,
        )


def _values(model: Model, path: Path, lines: Lines, table: VllmArguments, name: str, value: object) -> Iterator[Hit]:
    """A value of the right kind that is none of those that the argument takes."""
    choices = table.choices.get(name, ())
    if choices and isinstance(value, str) and value not in choices:
        near = nearest(value, choices, cutoff=0.8)
        remedy = key(path, near, name) if near else no_key(path, name, text=f"leave {name} out, for the model's own")
        yield hit_file(model, path, f"{name} is {value!r}; it takes {', '.join(choices)}", remedy, lines.of(name))
    if name in table.counts and isinstance(value, int) and not isinstance(value, bool) and value < 1:
        yield hit_file(model, path, f"{name} is {value}; it begins at 1", no_key(path, name), lines.of(name))


@rule("TF-TRI-231", "note", "vLLM's instances on one GPU take more than there is", thread("TS#6855"))
def vllm_memory(repository: Repository) -> Iterator[Hit]:
    """gpu_memory_utilization is a share of the whole GPU, 0.9 when nothing is said; together they must fit. Instances
    of KIND_MODEL all start on the first GPU."""
    shares: list[tuple[Model, Path, str, float, int]] = []
    for model in repository.models.values():
        found = _vllm(model) if is_vllm(model) else None
        document = _object(found[1]) if found is not None else None
        if found is None or document is None:
            continue
        share = document.get("gpu_memory_utilization", 0.9)
        kinds = {group.Kind.Name(group.kind) for group in model.message.instance_group}
        pinned = any(group.gpus for group in model.message.instance_group)
        if isinstance(share, (int, float)) and not pinned and ("KIND_MODEL" in kinds or not kinds):
            instances = sum(max(group.count, 1) for group in model.message.instance_group) or 1
            shares.append((model, found[0], found[1], float(share), instances))
    total = sum(share * instances for *_, share, instances in shares)
    count = sum(instances for *_, instances in shares)
    if count > 1 and total > 1:
        model, path, text, *_ = shares[-1]
        each = int(90 / count) / 100
        fitting = together(
            *(key(file, each, "gpu_memory_utilization") for _, file, *_ in shares), text=f"{each:.2f} each"
        )
        yield hit_file(
            model,
            path,
            ", ".join(f"{m.name} {share:g}" + (f" × {n}" if n > 1 else "") for m, _, _, share, n in shares)
            + f" are {total:g} of one GPU",
            (fitting, person("a GPU of its own for each")),
            Lines(text).of("gpu_memory_utilization"),
        )
