"""Rules on files and folders: what can be read, what is missing, what has the wrong name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from triton_repo.lint.files import entries, there
from triton_repo.lint.hits import (
    MAX_HITS,
    TRITON_CONFIG,
    TRITON_REPOSITORY,
    Hit,
    each_model,
    hit,
    hit_file,
    hit_node,
    listed,
    rule,
)
from triton_repo.lint.remedies import Edit, Remedy, here, moved, out, person, put
from triton_repo.lint.repository import CONFIG, HOLE, MODEL_FILES, Model, Repository, Version
from triton_repo.lint.roles import role
from triton_repo.lint.schema import Fault, FaultKind
from trtforge.ground.names import nearest
from trtforge.ground.paths import real_path
from trtforge.rules.sources import MODEL_CONFIG_PROTO, thread
from trtforge.rules.tables import Section

SECTION = Section(10, "Files, names and texts")

#: backends whose model is a folder or several files of free names
_FREE_FILES = frozenset({"dali", "fil", "tensorrtllm", "vllm", "openvino", "tensorflow"})


@rule("TF-TRI-020", "error", "the repository holds no model", TRITON_REPOSITORY)
def no_model(repository: Repository) -> Iterator[Hit]:
    """Every sub-folder of a repository is a model; a server started on this one serves nothing."""
    if repository.models or repository.problems:
        return
    meant = (repository.root / CONFIG).is_file()
    yield Hit(
        "this folder is one model, not a repository" if meant else "the repository holds no model",
        (person(f"the folder above it: {real_path(repository.root).parent}" if meant else "emit it again"),),
        "",
        repository.root,
    )


@rule("TF-TRI-106", "error", "a file or folder cannot be read", TRITON_REPOSITORY, last=True)
def unreadable(repository: Repository) -> Iterator[Hit]:
    """The server reads it too, and would fail or wait there."""
    for problem in repository.problems:
        if not problem.outside:
            readable = (person("a readable folder"),)
            yield Hit(f"{problem.path.name}: {problem.reason}", readable, problem.path.name, problem.path)
    for model in repository.models.values():
        for problem in model.unread():
            if not problem.outside:
                yield hit_file(
                    model,
                    problem.path,
                    f"{problem.path.name}: {problem.reason}"
                    + ("; Triton takes the bytes as they are" if problem.harmless else ""),
                    person("a text in UTF-8" if problem.harmless else "a readable text file"),
                    severity="note" if problem.harmless else None,
                )


@rule("TF-TRI-107", "note", "a link leaves the repository and is not followed", TRITON_REPOSITORY, last=True)
def links_outside(repository: Repository) -> Iterator[Hit]:
    """What lies behind it is outside the folder that was asked for, so it is neither read nor judged."""
    for problem in repository.problems:
        if problem.outside:
            elsewhere = (person("lint the folder that it leads to"),)
            yield Hit(f"{problem.path.name}: {problem.reason}", elsewhere, "", problem.path)
    for model in repository.models.values():
        for problem in model.unread():
            if problem.outside:
                message = f"{problem.path.name}: {problem.reason}"
                yield hit_file(model, problem.path, message, person("a copy inside the repository"))


@rule("TF-TRI-022", "error", "config.pbtxt is missing", TRITON_CONFIG)
def config_missing(repository: Repository) -> Iterator[Hit]:
    """Nothing in the folder says which backend serves it, so auto-complete cannot either."""
    for model in repository.models.values():
        if model.config is not None or there(model.path) or _completes(model):
            continue
        files = sorted(entry.name for entry in entries(model.folder) if entry.is_file(follow_symlinks=False))
        near = nearest(CONFIG, files) or next((name for name in files if "pbtxt" in name), None)
        for version in model.versions:
            if near is None and version.names is not None and CONFIG in version.names:
                near = f"{version.folder.name}/{CONFIG}"
        yield hit_file(
            model,
            model.path,
            "config.pbtxt is missing" + (f"; there is {near}" if near else ""),
            moved(model.folder / near, model.path, f"mv {near} {CONFIG}")
            if near
            else (person(f"put its {CONFIG} there"), person("move the folder out of the repository")),
        )


def _completes(model: Model) -> bool:
    """Whether auto-complete finds a backend without a configuration."""
    return bool(model.backend) or ("." in model.name and bool(model.versions))


@rule("TF-TRI-104", "note", "the configuration is left to auto-complete", TRITON_CONFIG)
def auto_complete(repository: Repository) -> Iterator[Hit]:
    """It works with a server that may complete configurations; --disable-auto-complete-config, which TensorRT-LLM's
    launch script sets on all ranks but the first, refuses the model."""
    for model in repository.models.values():
        if model.config is None and not there(model.path) and _completes(model):
            message = f"no config.pbtxt; the backend is {model.backend or 'in the name'}"
            yield hit_file(model, model.folder, message, person("write one"))


@rule("TF-TRI-023", "error", "the configuration is named otherwise than its folder", TRITON_REPOSITORY)
def name_differs(repository: Repository) -> Iterator[Hit]:
    """Triton refuses a model whose configuration has another name than its folder."""
    for model in repository.models.values():
        name = model.message.name
        if model.knows("name") and name and name != model.name:
            message = f"the configuration is named {name!r} and its folder {model.name!r}"
            yield hit(model, message, (here(f'"{model.name}"'), out()), "name")


@rule("TF-TRI-124", "error", "two models have one name", TRITON_REPOSITORY)
def duplicate_names(repository: Repository) -> Iterator[Hit]:
    """A name stands for one model in all repositories of a server; the second is not loaded."""
    first: dict[str, str] = {}
    for model in repository.models.values():
        name = model.message.name if model.readable else ""
        if not name:
            continue
        if name in first:
            yield hit(
                model, f"{name!r} is also the name of the model in {first[name]}/", here(f'"{model.name}"'), "name"
            )
        first.setdefault(name, model.name)


@rule("TF-TRI-025", "error", "a version folder or its model.py is missing", TRITON_REPOSITORY)
def versions(repository: Repository) -> Iterator[Hit]:
    """Triton loads numbered folders only, and its Python backend waits for ever on one without model.py."""
    for model in repository.models.values():
        if not model.readable:
            continue
        if not model.versions:
            if not model.is_ensemble:
                yield hit_file(model, model.folder, "no version folder", person("a folder 1/ with the model"))
            continue
        if model.backend == "python":
            name = model.message.default_model_filename or "model.py"
            for version in loaded(model):
                if version.names is not None and name not in version.names:
                    message = f"the version folder has no {name}: Triton would wait for ever"
                    yield hit_file(model, version.folder / name, message, person("put it back"))


def loaded(model: Model) -> list[Version]:
    """The versions that the version policy serves; the latest one by default."""
    policy = model.message.version_policy
    if policy.HasField("all"):
        return model.versions
    if policy.HasField("specific"):
        return [version for version in model.versions if version.number in policy.specific.versions]
    count = policy.latest.num_versions if policy.HasField("latest") else 1
    return model.versions[-max(count, 1) :]


@rule("TF-TRI-120", "error", "the version policy asks for versions that are not there", TRITON_CONFIG)
@each_model
def version_policy(model: Model, repository: Repository) -> Iterator[Hit]:
    """A version that the policy names and that has no folder is not served; with none left, the model is not."""
    policy = model.message.version_policy
    numbers = {version.number for version in model.versions}
    if policy.HasField("specific"):
        missing = sorted(set(policy.specific.versions) - numbers)
        if missing or not policy.specific.versions:
            message = f"versions {missing} have no folder" if missing else "the policy names no version"
            remedy = (
                here(str([n for n in policy.specific.versions if n in numbers] or sorted(numbers)))
                if numbers
                else person("a folder 1/")
            )
            yield hit(model, message, remedy, "version_policy", "specific", "versions")
    if (
        policy.HasField("latest")
        and model.states("version_policy", "latest", "num_versions")
        and policy.latest.num_versions < 1
    ):
        place = ("version_policy", "latest", "num_versions")
        yield hit(model, "latest 0 versions are none", here("1"), *place)


@rule("TF-TRI-121", "error", "the model file is missing in a version folder", TRITON_REPOSITORY)
@each_model
def model_file(model: Model, repository: Repository) -> Iterator[Hit]:
    """The backend looks for this one name in every version that it loads."""
    if model.backend in ("python", "") or model.is_ensemble:
        return
    stated = model.message.default_model_filename
    if not stated and model.backend in _FREE_FILES:
        return
    wanted = [stated] if stated else [file for file, backend in MODEL_FILES.items() if backend == model.backend]
    if not wanted:
        return
    others = set(model.message.cc_model_filenames.values())
    for version in loaded(model):
        if version.names is None or any(name in version.names for name in wanted) or others & version.names:
            continue
        near = nearest(wanted[0], version.names)
        usual = [file for file, backend in MODEL_FILES.items() if backend == model.backend and file in version.names]
        line = "default_model_filename" if stated else "backend"
        found = f" (there is {listed(version.names)})" if version.names else " (it is empty)"
        yield hit(
            model,
            f"version {version.number} has no {' or '.join(wanted)}{found}",
            put(model, f'"{near}"', "default_model_filename")
            if near
            else (
                *((out(f"leave it out: {usual[0]} is there"),) if stated and usual else ()),
                person(f"put {wanted[0]} into {version.folder.name}/"),
            ),
            line,
        )


@rule("TF-TRI-122", "warning", "a folder looks like a version and is not loaded", TRITON_REPOSITORY)
def odd_versions(repository: Repository) -> Iterator[Hit]:
    """Only folders whose name is a number without a leading zero are versions; others are ignored silently."""
    for model in repository.models.values():
        for folder in model.odd_folders:
            digits = folder.name.lower().removeprefix("version").removeprefix("v").lstrip("_-0").split(".")[0]
            looks = folder.name.lower() in ("latest", "current", "version") or (
                bool(digits) and digits.isdigit() and folder.name.lower().strip("v0123456789._-") in ("", "ersion")
            )
            if looks or folder.name.strip("0") == "":
                new = folder.parent / str(digits or 1)
                taken = any(version.number == int(digits or 1) for version in model.versions)
                remedy = (
                    person(f"a number that is free; {new.name} is taken")
                    if taken
                    else moved(folder, new, f"mv {folder.name} {new.name}")
                )
                yield hit_file(model, folder, f"{folder.name}/ is no version folder", remedy)


def _faults(repository: Repository, kind: FaultKind) -> Iterator[Hit]:
    for model, config in repository.configured():
        for fault in [fault for fault in config.faults if fault.kind == kind][:MAX_HITS]:
            remedies = _agreed(repository, model, fault)
            yield Hit(fault.message, remedies, model.name, model.path, fault.line, fault.column)


def _agreed(repository: Repository, model: Model, fault: Fault) -> tuple[Remedy, ...]:
    """What would work; a placeholder of a field that the models of a chain must agree on takes what the others have."""
    if fault.kind != "placeholder" or fault.field not in ("max_batch_size", "model_transaction_policy.decoupled"):
        return fault.remedies
    if role(model) is None and not model.is_ensemble:
        return fault.remedies
    others = [
        other.message
        for other in repository.models.values()
        if other is not model and role(other) is not None and other.knows(*fault.field.split("."))
    ]
    if fault.field == "max_batch_size":
        values = {str(message.max_batch_size) for message in others if message.max_batch_size}
    else:
        values = {
            str(bool(m.model_transaction_policy.decoupled)).lower()
            for m in others
            if m.HasField("model_transaction_policy")
        }
    if len(values) != 1:
        return fault.remedies
    value, name = values.pop(), fault.field.rpartition(".")[2]
    edits = tuple(replace(edit, value=value) for edit in fault.remedies[0].edits or fault.place_edits)
    return (Remedy(f"{name}: {value}, as in the models around it", edits),)


@rule("TF-TRI-001", "error", "the configuration cannot be parsed", TRITON_CONFIG)
def syntax(repository: Repository) -> Iterator[Hit]:
    """Triton reads it as protobuf text of the message ModelConfig and refuses what does not parse."""
    return _faults(repository, "syntax")


@rule("TF-TRI-101", "error", "a template placeholder was not filled in", thread("TB#61"))
def placeholder(repository: Repository) -> Iterator[Hit]:
    """A number, a flag or a type is read there; Triton says "Expected integer, got: $"."""
    return _faults(repository, "placeholder")


@rule("TF-TRI-102", "error", "a field does not exist", TRITON_CONFIG)
def unknown_field(repository: Repository) -> Iterator[Hit]:
    """One unknown field makes Triton refuse the whole configuration."""
    return _faults(repository, "unknown")


@rule("TF-TRI-103", "error", "a value has the wrong type", TRITON_CONFIG)
def wrong_type(repository: Repository) -> Iterator[Hit]:
    """The field's type is fixed in the message ModelConfig; another one does not parse."""
    return _faults(repository, "type")


@rule("TF-TRI-109", "error", "a field is set twice", TRITON_CONFIG)
def set_twice(repository: Repository) -> Iterator[Hit]:
    """A field that is not repeated may stand once; the parser refuses the second."""
    return _faults(repository, "twice")


@rule("TF-TRI-133", "error", "two schedulers are asked for", TRITON_CONFIG)
def two_schedulers(repository: Repository) -> Iterator[Hit]:
    """A model has one scheduler: dynamic batching, sequence batching or an ensemble."""
    return _faults(repository, "schedulers")


@rule("TF-TRI-105", "note", "a field of a newer Triton", MODEL_CONFIG_PROTO)
def newer_field(repository: Repository) -> Iterator[Hit]:
    """It exists in current releases and not in older ones, which refuse the configuration; it is not judged."""
    for model, config in repository.configured():
        for node in config.newer:
            message = f"{node.name} is newer than the message that this version knows"
            remedy = Remedy("leave it out for older servers", (Edit("splice", model.path, (node.start, node.end)),))
            yield hit_node(model, node.start, message, remedy)


@rule("TF-TRI-108", "error", "a placeholder stands in a name or a path of the configuration", thread("TB#79"))
def placeholder_in_text(repository: Repository) -> Iterator[Hit]:
    """The text is taken as it stands: the name of a file, a model or a tensor with ${…} in it exists nowhere."""
    for model, config in repository.configured():
        for path, _, node in config.text.root.walk():
            # values of parameters have rules of their own: their backend decides what an unfilled one means
            if node.kind == "string" and path[:1] != ("parameters",) and HOLE.search(node.text):
                remedy = person(f'{node.name}: "…"')
                yield hit_node(model, node.value_start, f"{node.name} is {node.text}", remedy)
