"""Rules on the keys and values of ``model.yaml``, held against the table of ``LLM()``'s arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_repo.lint.checks.llm_speculation import without_key
from triton_repo.lint.checks.llmapi import each_document
from triton_repo.lint.hits import Hit, hit_file, listed, rule
from triton_repo.lint.llm_arguments import Arguments, keys_twice, load_arguments
from triton_repo.lint.remedies import Edit, Remedies, Remedy, key, key_named, leaving, no_key, person, together
from triton_repo.lint.repository import Model
from triton_repo.lint.settings import Entry, Lines, entries, homes, placed, wraps
from triton_repo.parameters import load_parameters
from trtforge.ground.names import nearest
from trtforge.rules.tables import Section

SECTION = Section(110, "The LLM API: arguments")

_REFERENCE = "https://nvidia.github.io/TensorRT-LLM/llm-api/reference.html"


@rule("TF-TRI-223", "error", "a key of model.yaml is misspelt, misplaced or removed", _REFERENCE)
@each_document
def yaml_keys(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """LLM() and its sections refuse names that they do not have."""
    table, lines = load_arguments(), Lines(text)
    for name, line, first in keys_twice(text):
        message = f"{name} is set a second time (first in line {first}); the last one holds"
        yield hit_file(model, path, message, person("keep one of the two"), line)
    for entry in entries(document, table):
        found = _key_fault(entry, table, path, document)
        if found is not None:
            message, remedies = found
            yield hit_file(model, path, message, remedies, lines.of(*entry.path))
    passed = "logits_post_processors"
    if passed in document and model.code is not None and "exclude_keys" in model.code and passed not in model.code:
        message = f"{passed} is handed to LLM(): this model.py does not take it out"
        yield hit_file(model, path, message, no_key(path, passed), lines.of(passed))
    if str(document.get("backend", "pytorch")) not in ("pytorch", "_autodeploy"):
        yield hit_file(
            model,
            path,
            f"backend {document['backend']!r}: engines are not run since 1.3",
            key(path, "pytorch", "backend"),
            lines.of("backend"),
        )


def _key_fault(entry: Entry, table: Arguments, path: Path, document: Mapping[str, Any]) -> tuple[str, Remedies] | None:
    """What is wrong with a key's name or place, and what would work."""
    name, known = entry.key, table.known[entry.section]
    of = entry.section or "LLM()"
    if entry.odd:
        return f"{name} is no name: YAML reads it as another kind of value", person("the name of an argument")
    gone = table.removed.get(entry.section, {}).get(name)
    if name in known:
        if entry.name in table.known and not isinstance(entry.value, dict) and entry.value is not None:
            if entry.name == "moe_config.load_balancer" and isinstance(entry.value, str):
                return None  # the name of a file that holds it
            return f"{name} is a section, and {entry.value!r} is none", person(
                f"{name}: {{{table.known[entry.name][0]}: …}}"
            )
        return None
    if gone is not None:
        target = gone.to or gone.inverse
        value = entry.value
        if target is not None and gone.inverse and isinstance(value, bool):
            value = not value
        if target is not None and (gone.to or isinstance(value, bool)):
            return f"{name} is no argument of {of}; {target} is", _to(
                entry, value, tuple(target.split(".")), path, document
            )
        return f"{name} is no argument any more", _without(entry, path, gone.says or f"{target}, the other way round")
    if not entry.section and name in table.engine_only:
        return f"{name} was for engines; the PyTorch backend does not have it", _without(entry, path)
    places = homes(name, entry.section, table)
    if wraps(entry, table):
        message = f"{name} is no argument: what stands below it belongs to the top of model.yaml"
        return message, _lifted(entry, path, document)
    if entry.section and name in table.known[""]:
        message = f"{name} is an argument of LLM(), not of {of}: it stands in the wrong section"
        return message, _to(entry, entry.value, (name,), path, document)
    if len(places) == 1:
        home = places[0].rpartition(".")[0]
        message = f"{name} is an argument of {home}, not of {of}"
        return message, _to(entry, entry.value, tuple(places[0].split(".")), path, document)
    near = nearest(name, known, cutoff=0.85)
    if near is not None:
        return f"{name} is no argument of {of}; {near} is", _renamed(entry, near, path, document)
    if document.get("backend") == "_autodeploy":
        return None  # it has arguments of its own
    if places:
        message = f"{name} is no argument of {of}; {listed(p.rpartition('.')[0] or 'LLM()' for p in places)} have one"
        return message, person("move it to one of them: " + listed(places))
    return f"{name} is no argument of {of} that is known ({table.as_of})", _without(entry, path)


def _without(entry: Entry, path: Path, text: str | None = None) -> Remedy:
    """Take the key out, and its section with it when nothing is left there."""
    above = entry.path[:-1] if entry.alone and len(entry.path) > 1 else entry.path
    return no_key(path, *above, text=text or f"leave {entry.key} out")


def _value_at(document: Mapping[str, Any], place: tuple[str, ...]) -> tuple[bool, Any]:
    """Whether there is a key, and its value."""
    value: Any = document
    for part in place:
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _shown(place: tuple[str, ...], value: Any) -> str:
    text = "…" if isinstance(value, (dict, list)) else str(value).lower() if isinstance(value, bool) else str(value)
    for part in reversed(place[1:]):
        text = f"{{{part}: {text}}}"
    return f"{place[0]}: {text}"


def _to(entry: Entry, value: Any, place: tuple[str, ...], path: Path, document: Mapping[str, Any]) -> Remedy:
    """Move a key, or only take it out where its new place is taken already."""
    taken, there = _value_at(document, place)
    gone = _without(entry, path)
    if ".".join(place) in load_arguments().known and value is not None and not isinstance(value, dict):
        return Remedy(f"leave {entry.key} out: it is a section, and its value is none", gone.edits)
    if taken:
        same = " as well" if there == value else f" to {there!r}"
        return Remedy(f"leave {entry.key} out: {'.'.join(place)} is set{same}", gone.edits)
    where = f"move it to the top of model.yaml: {_shown(place, value)}" if len(place) == 1 else _shown(place, value)
    moved = together(gone, key(path, value, *place), text=where)
    if place[0] in document:
        return moved
    if place[0] == "speculative_config" and place[-1] != "decoding_type":
        return leaving(replace(moved, text=f"{where}, where decoding_type is missing yet"), "TF-TRI-226")
    if place[0] == "lora_config":
        return leaving(replace(moved, text=f"{where}, with tensors that ask for an adapter"), "TF-TRI-255")
    return moved


def _renamed(entry: Entry, name: str, path: Path, document: Mapping[str, Any]) -> Remedy:
    if _value_at(document, (*entry.path[:-1], name))[0]:
        return Remedy(f"leave {entry.key} out: {name} is set", _without(entry, path).edits)
    return key_named(path, name, *entry.path)


def _lifted(entry: Entry, path: Path, document: Mapping[str, Any]) -> Remedy:
    """What stands below a foreign key, at the top."""
    inner: Mapping[Any, Any] = entry.value
    clash = [str(name) for name in inner if str(name) in document]
    if clash:
        return person(f"lift its keys to the top; {listed(clash)} is set there already: keep one of the two")
    edits: tuple[Edit, ...] = no_key(path, *entry.path).edits
    for name, value in inner.items():
        edits += key(path, value, str(name)).edits
    return Remedy(f"lift its keys to the top: {listed(map(str, inner))}", edits)


@rule(
    "TF-TRI-225",
    "error",
    "a value of model.yaml is none that the key takes",
    "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
)
@each_document
def yaml_values(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """LLM() checks its arguments and refuses to start."""
    table, lines = load_arguments(), Lines(text)
    ranges = {
        row.name.split(" ")[0]: row
        for row in load_parameters("llmapi").rows
        if row.place == "yaml" and row.kind in ("integer", "fraction", "share", "boolean")
    }
    for entry in entries(document, table):
        line = lines.of(*entry.path)
        if entry.name in table.choices and entry.value is not None:
            yield from _choice(model, entry, table, path, line)
        if entry.name in table.lists and entry.value is not None and not isinstance(entry.value, list):
            yield _no_list(model, entry, path, line)
        row = ranges.get(entry.name)
        if row is None or entry.value is None or entry.key.endswith("parallel_size"):
            continue
        fault = row.fault(str(entry.value).lower() if isinstance(entry.value, bool) else str(entry.value))
        if fault:
            default: Any = {"true": True, "false": False}.get(row.default, row.default)
            number = {"integer": int, "boolean": bool}.get(row.kind, float)
            usual = [key(path, number(default), *entry.path)] if row.default else []
            message = f"{entry.name}: {fault} ({row.allowed})"
            yield hit_file(model, path, message, [*usual, _without(entry, path)], line)


def _no_list(model: Model, entry: Entry, path: Path, line: int) -> Hit:
    """A key that takes a list and has one value, or a text with several."""
    value = entry.value
    texts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else [value]
    parts = [int(part) if str(part).isdecimal() else part for part in texts]
    message = f"{entry.name} is {value!r}; it takes a list"
    if isinstance(value, dict) or not parts:
        return hit_file(model, path, message, _without(entry, path), line)
    return hit_file(model, path, message, key(path, parts, *entry.path), line)


@rule(
    "TF-TRI-263",
    "error",
    "two keys say different batches for CUDA graphs",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/llmapi/llm_args.py",
)
@each_document
def graph_batches(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """LLM() takes batch_sizes or max_batch_size, and refuses both unless the one follows from the other."""
    arguments = placed(document, load_arguments())
    listed_ones, largest = (arguments.get(f"cuda_graph_config.{name}") for name in ("batch_sizes", "max_batch_size"))
    if listed_ones is None or largest is None or not isinstance(listed_ones.value, list):
        return
    sizes = [size for size in listed_ones.value if isinstance(size, int)]
    if not sizes or not isinstance(largest.value, int) or largest.value in (0, max(sizes)):
        return
    message = f"cuda_graph_config.batch_sizes ends at {max(sizes)} and max_batch_size is {largest.value}"
    remedies = [no_key(path, *largest.path), no_key(path, *listed_ones.path)]
    yield hit_file(model, path, message, remedies, Lines(text).of(*largest.path))


def _choice(model: Model, entry: Entry, table: Arguments, path: Path, line: int) -> Iterator[Hit]:
    row = table.choices[entry.name]
    given = entry.value if isinstance(entry.value, list) else [entry.value]
    for index, value in enumerate(given):
        spoken = str(value)
        by_case = {allowed.lower(): allowed for allowed in row.values}
        if spoken in row.values or (row.fold and spoken.lower() in by_case):
            continue
        near = by_case.get(spoken.lower()) or _like(spoken, row.values)
        place: tuple[str | int, ...] = (*entry.path, index) if isinstance(entry.value, list) else entry.path
        edits = [Remedy(f"{entry.key}: {near}", key(path, near, *place).edits)] if near else []
        if not edits and not isinstance(entry.value, list):
            edits = [_without(entry, path, f"leave {entry.key} out, for its default")]
        loose = row.loose and spoken.lower() in by_case
        message = f"{entry.name} is {spoken!r}; it takes {', '.join(row.values)}"
        remedies = edits or [person(f"one of {', '.join(row.values)}")]
        yield hit_file(model, path, message, remedies, line, "warning" if loose else None)


def _like(spoken: str, values: tuple[str, ...]) -> str | None:
    """The value that was meant: near in spelling, or one that the text begins with (``fp8_e4m3`` is ``fp8``)."""
    begins = [value for value in values if spoken.lower().startswith(f"{value.lower()}_")]
    return max(begins, key=len) if begins else nearest(spoken, values, cutoff=0.8)


@rule(
    "TF-TRI-250",
    "warning",
    "guided decoding and this speculation do not go together",
    "https://nvidia.github.io/TensorRT-LLM/features/guided-decoding.html",
)
@each_document
def guided_speculation(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """The grammar's mask and the drafts are made by different parts, which have to agree about the rows of a step;
    releases differ in which ways they do."""
    table, lines = load_arguments(), Lines(text)
    arguments = placed(document, table)
    entry, grammar = arguments.get("speculative_config"), arguments.get("guided_decoding_backend")
    if grammar is None or grammar.value is None or entry is None or not isinstance(entry.value, dict):
        return
    for row in table.guided_with_speculation:
        kind = str(entry.value.get("decoding_type"))
        if kind not in row.types or not entry.value.get(row.key):
            continue
        until = f", reported on {row.until} and mended since" if row.until else ""
        message = f"guided_decoding_backend with {kind} and {row.key}: {row.says}{until} ({row.source})"
        remedies = [
            without_key(path, entry.path, row.key, entry.value),
            no_key(path, *grammar.path),
            *((person(f"a release after {row.until}"),) if row.until else ()),
        ]
        yield hit_file(model, path, message, remedies, lines.of(*entry.path, row.key), "error" if row.refused else None)
