"""What two repositories say differently, model by model and field by field, and what it means.

Tensors, steps and parameters are compared by their names, so that an order says nothing, and so are the keys of
``model.yaml`` and ``model.json``; other files of a version are compared byte by byte. Where the two belong
to different versions of TensorRT-LLM's backend, the changes between the versions that touch these models are
listed too, defaults that move under an unchanged text included. A path that leads to the same place by another way is
of the kind ``location``: it is shown and is no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triton_repo.callers import calls
from triton_repo.engine_versions import engine_version
from triton_repo.history import Change, History, load_history
from triton_repo.lint.files import MAX_BYTES, Unreadable, entries, inside
from triton_repo.lint.repository import Model, Repository, read_repository
from triton_repo.lint.roles import role
from triton_repo.parameters import load_parameters
from triton_repo.places import same_folder, same_place
from triton_repo.settings_files import NAMES, PLACES, changes, read_settings
from trtforge.ground.errors import ForgeError

Kind = Literal["added", "removed", "changed", "renamed", "meaning", "location"]
_NAMES = {"input": "name", "output": "name", "step": "model_name", "model_warmup": "name", "control_input": "name"}


@dataclass(frozen=True)
class Difference:
    """One difference.

    ``field`` is a dotted path with names in brackets (``input[top_k].dims``); ``line`` is the line in the file
    of the newer repository, or of the older one for what was removed.
    """

    kind: Kind
    model: str
    field: str
    old: str | None
    new: str | None
    meaning: str
    path: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The difference as one JSON-able object."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Comparison:
    """All differences, and the versions that the two repositories can belong to."""

    differences: tuple[Difference, ...]
    old_versions: tuple[str, str] | None
    new_versions: tuple[str, str] | None

    @property
    def same(self) -> bool:
        """Whether the two serve the same: nothing differs but the way to the same places."""
        return all(item.kind == "location" for item in self.differences)


def diff_repositories(old: Path, new: Path) -> Comparison:
    """Compare two repositories.

    Raises:
        ForgeError: TF-TRI-100 when one of them cannot be read.
    """
    before, after = read_repository(old), read_repository(new)
    old_versions, new_versions = infer_versions(before), infer_versions(after)
    crossed = _crossed(old_versions, new_versions)
    found: list[Difference] = []
    for name in sorted(set(before.models) | set(after.models)):
        one, other = before.models.get(name), after.models.get(name)
        if one is None and other is not None:
            found.append(Difference("added", name, "", None, other.backend or None, "a model more", str(other.folder)))
        elif other is None and one is not None:
            asking = [call.caller.name for call in calls(before, one) if call.caller.name in after.models]
            meaning = "clients and ensembles that ask it are refused" + (f": {', '.join(asking)}" if asking else "")
            found.append(Difference("removed", name, "", one.backend or None, None, meaning, str(one.folder)))
        elif one is not None and other is not None:
            found += _models(one, other, crossed)
    return Comparison(tuple(found), old_versions, new_versions)


def infer_versions(repository: Repository) -> tuple[str, str] | None:
    """The oldest and the newest version of ``inflight_batcher_llm`` that the repository fits; None without one.

    An engine that can be read says its version, and it is served by no other. Else a parameter that is there was added
    by then, and one that a later version dropped was not dropped yet.
    """
    history = load_history()
    built = _built(repository, history)
    if built is not None:
        return history.versions[built], history.versions[built]
    low, high, seen = 0, len(history.versions) - 1, False
    for model in repository.models.values():
        found = role(model)
        if found is None:
            continue
        seen = seen or found == "tensorrt_llm"
        old = history.old_names(found)
        for name in model.message.parameters:
            since = history.since(found, name)
            if since is not None:
                low = max(low, history.versions.index(since))
            change = old.get(name)
            if change is not None and change.kind != "ignored":
                high = min(high, history.versions.index(change.version) - 1)
    if not seen:
        return None
    return history.versions[min(low, high)], history.versions[high]


def _built(repository: Repository, history: History) -> int | None:
    """Where the version of the newest engine stands; None where no engine says one that the table has."""
    found = []
    for model in repository.models.values():
        said = engine_version(model) if role(model) == "tensorrt_llm" else None
        if said is not None:
            try:
                found.append(history.index(said))
            except ForgeError:
                continue
    return max(found, default=None)


def _crossed(old: tuple[str, str] | None, new: tuple[str, str] | None) -> list[Change]:
    """The changes that lie surely between the two."""
    if old is None or new is None:
        return []
    history = load_history()
    return history.between(old[1], new[0]) if history.index(new[0]) > history.index(old[1]) else []


def _models(one: Model, other: Model, crossed: list[Change]) -> Iterator[Difference]:
    found = role(other) or role(one)
    changes = {change.name: change for change in crossed if change.model == found}
    before, after = flatten(one), flatten(other)
    moved = _renames(changes.values(), before, after)
    for gone, come in moved.items():
        change = changes[_inner(gone)]
        old, new = _whole(before, gone), _whole(after, come)
        yield _difference("renamed", other, come, f"{gone} = {old}", new, change.says)
    skipped = (*moved, *moved.values())
    for field, old, new in _elements(before, after):
        if old == new or (skipped and field.startswith(skipped)):
            continue
        meaning = _meaning(found, field, changes)
        kind = _kind(old, new)
        if kind == "changed" and field.startswith("parameters[") and same_place(_parameter(field), one, other):
            yield _difference("location", other, field, old, new, "another way to the same place")
            continue
        yield _difference(kind, one if new is None else other, field, old, new, meaning)
    for change in changes.values():
        if change.kind == "default" and not _is_set(one, change.name) and not _is_set(other, change.name):
            yield Difference(
                "meaning",
                other.name,
                f"parameters[{change.name}]",
                f"default {change.before}",
                f"default {change.to}",
                f"since {change.version}: {change.says}",
                str(other.path),
                None,
            )
    yield from _files(one, other)


def _renames(changes: Iterable[Change], before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Old path → new path of parameters and tensors that have another name and are otherwise in both."""
    result: dict[str, str] = {}
    for change in changes:
        for form in ("parameters[{}]",) if change.kind == "renamed" else ("input[{}]", "output[{}]"):
            gone, come = form.format(change.name), form.format(change.to)
            if change.kind in ("renamed", "tensor_renamed") and _whole(before, gone) and _whole(after, come):
                result[gone] = come
    return result


def _inner(field: str) -> str:
    return field.partition("[")[2].removesuffix("]")


def _whole(fields: Mapping[str, str], field: str) -> str | None:
    """A parameter's text, or a tensor's type and dims; None when it is not there."""
    if field in fields:
        return fields[field]
    parts = {key.removeprefix(f"{field}."): text for key, text in fields.items() if key.startswith(f"{field}.")}
    if not parts:
        return None
    return " ".join(parts[name] for name in ("data_type", "dims") if name in parts) or ", ".join(
        f"{key} {text}" for key, text in sorted(parts.items())
    )


def _elements(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str | None, str | None]]:
    """(path, old, new) of every field; a tensor or step that only one side has is one line."""
    sides = (_named(before), _named(after))
    whole = sorted(sides[0] ^ sides[1])
    for element in whole:
        yield element, _whole(before, element), _whole(after, element)
    inside_one = tuple(f"{element}." for element in whole)
    for field in sorted(set(before) | set(after)):
        if not (inside_one and field.startswith(inside_one)):
            yield field, before.get(field), after.get(field)


def _named(fields: Mapping[str, str]) -> set[str]:
    """The paths of the elements of named lists (``input[top_k]``, ``ensemble_scheduling.step[m]``)."""
    result = set()
    for field in fields:
        parts = field.split(".")
        for index, part in enumerate(parts):
            if part.partition("[")[0] in _NAMES and part.endswith("]"):
                result.add(".".join(parts[: index + 1]))
                break
    return result


def _is_set(model: Model, name: str) -> bool:
    return model.parameter(name) is not None


def _parameter(field: str) -> str:
    return field.removeprefix("parameters[").removesuffix("]")


def _meaning(found: str | None, field: str, changes: Mapping[str, Change]) -> str:
    if found is None or not field.startswith("parameters["):
        name = field.rsplit(".", 1)[-1]
        return _FIELDS.get(name, "")
    name = _parameter(field)
    if name in changes:
        return f"since {changes[name].version}: {changes[name].says}"
    rows = {row.name: row for row in load_parameters("inflight_batcher_llm").rows if found in row.models}
    return rows[name].meaning if name in rows else ""


_FIELDS = {
    "max_batch_size": "rows of one request at most",
    "decoupled": "whether a request may get more than one response",
    "max_queue_delay_microseconds": "how long a request may wait for others",
    "max_queue_size": "requests that may wait before new ones are refused",
    "count": "instances that run in parallel",
    "kind": "where instances run",
    "data_type": "clients must send or expect another type",
    "dims": "clients must send or expect another shape",
    "optional": "whether a request may leave the input out",
    "backend": "what runs the model",
}


def _difference(kind: Kind, model: Model, field: str, old: str | None, new: str | None, meaning: str) -> Difference:
    return Difference(kind, model.name, field, old, new, meaning, str(model.path), _line(model, field))


def _line(model: Model, field: str) -> int | None:
    if model.config is None:
        return None
    path: list[str | int] = []
    for part in field.split("."):
        name, _, key = part.partition("[")
        path.append(name)
        if key:
            key = key.removesuffix("]")
            path.append(int(key) if key.isdigit() and name not in _NAMES else f"{_NAMES.get(name, 'key')}={key}")
    node = model.config.text.deepest(*path)
    return None if node is model.config.text.root else model.config.text.position(node.start)[0]


def flatten(model: Model) -> dict[str, str]:
    """A model's configuration as dotted paths and texts; placeholders as they stand in the file."""
    result: dict[str, str] = {}
    if model.config is None:
        return result
    if model.readable:
        _flat(model.message, (), result)
    for path, _, node in model.config.text.root.walk():
        if node.kind == "hole" and node.name:
            result.setdefault(".".join((*path, node.name)), node.text)
    return result


def _flat(message: Any, path: tuple[str, ...], result: dict[str, str]) -> None:
    for row, value in message.ListFields():
        entry = row.message_type is not None and row.message_type.GetOptions().map_entry
        if entry:
            inner = row.message_type.fields_by_name["value"]
            for key in sorted(value):
                where = (*path, f"{row.name}[{key}]")
                if inner.message_type is None:
                    result[".".join(where)] = str(value[key])
                elif row.name == "parameters":
                    result[".".join(where)] = value[key].string_value
                else:
                    _flat(value[key], where, result)
        elif row.label == row.LABEL_REPEATED and row.message_type is not None:
            for index, item in enumerate(value):
                name = getattr(item, _NAMES[row.name]) if row.name in _NAMES else str(index)
                _flat(item, (*path, f"{row.name}[{name}]"), result)
        elif row.label == row.LABEL_REPEATED:
            result[".".join((*path, row.name))] = "[" + ", ".join(str(item) for item in value) + "]"
        elif row.message_type is not None:
            before = len(result)
            _flat(value, (*path, row.name), result)
            if len(result) == before:
                result[".".join((*path, row.name))] = "{}"
        elif row.enum_type is not None:
            result[".".join((*path, row.name))] = row.enum_type.values_by_number[value].name
        else:
            result[".".join((*path, row.name))] = str(value).lower() if isinstance(value, bool) else str(value)


def _files(one: Model, other: Model) -> Iterator[Difference]:
    before, after = _hashes(one), _hashes(other)
    for name in sorted(set(before) | set(after)):
        if name not in after:
            yield Difference("removed", one.name, name, before[name], None, "a file less", str(one.folder / name))
        elif name not in before:
            yield Difference("added", other.name, name, None, after[name], "a file more", str(other.folder / name))
        elif before[name] != after[name]:
            settings = _settings(name, one, other)
            if settings is None:
                yield Difference(
                    "changed", other.name, name, before[name], after[name], "another content", str(other.folder / name)
                )
            else:
                yield from settings


def _settings(name: str, one: Model, other: Model) -> list[Difference] | None:
    """What a file of settings says differently, key by key; None where it is no such file or cannot be read."""
    file = name.rpartition("/")[2]
    if file not in NAMES:
        return None
    sides = []
    for model in (one, other):
        text = model.read(model.folder / name)
        read = None if text is None else read_settings(file, text)
        if read is None:
            return None
        sides.append(read)
    rows = {row.name.split(" ")[0]: row.meaning for row in load_parameters("llmapi").rows if row.place == "yaml"}
    found = []
    for key, old, new in changes(*sides):
        meaning, kind = rows.get(key, "") if file == "model.yaml" else "", _kind(old, new)
        if old is not None and new is not None and key in PLACES and same_folder(old.value, new.value, one, other):
            meaning, kind = "another way to the same place", "location"
        stated, model = (old, one) if new is None else (new, other)
        found.append(
            Difference(
                kind,
                other.name,
                f"{name}:{key}",
                None if old is None else old.text,
                None if new is None else new.text,
                meaning,
                str(model.folder / name),
                stated.line if stated is not None else None,
            )
        )
    return found


def _kind(old: object, new: object) -> Kind:
    return "added" if old is None else "removed" if new is None else "changed"


def _hashes(model: Model) -> dict[str, str]:
    """Files of the version folders and of ``warmup`` by relative path: a hash, or the size of a large one."""
    result: dict[str, str] = {}
    folders = [version.folder for version in model.versions] + [f for f in model.odd_folders if f.name == "warmup"]
    while folders:
        folder = folders.pop()
        try:
            inside(folder, model.root)
            listing = entries(folder)
        except Unreadable:
            continue
        for entry in listing:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    folders.append(folder / entry.name)
            elif entry.is_file(follow_symlinks=False) and entry.name != "__pycache__":
                result[str((folder / entry.name).relative_to(model.folder))] = _content(folder / entry.name)
    return result


def _content(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            return f"{size} bytes"
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        return f"unreadable ({(error.strerror or 'error').lower()})"
