"""Rules on the parameters of TensorRT-LLM's models: names, types, ranges, and settings that need each other.

Names, types and ranges come from the parameter table; the C++ backend puts its default in place of a value
that it cannot read and says so in a log line only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from triton_repo.history import load_history
from triton_repo.lint.engine_models import at
from triton_repo.lint.hits import TRTLLM_PARAMETERS, Hit, each_model, hit, listed, rule
from triton_repo.lint.remedies import Remedy, no_parameter, parameter, person, put, together
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.roles import role
from triton_repo.parameters import Parameter, load_parameters
from trtforge.ground.names import nearest
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(60, "TensorRT-LLM's parameters")

_CODE = (
    "https://github.com/triton-inference-server/tensorrtllm_backend/blob/v0.19.0/"
    "inflight_batcher_llm/src/model_instance_state.cc"
)
#: booleans as the C++ backend and the Python models read them
_BOOLEANS = frozenset({"true", "false", "1", "0"})
_PYTHON_BOOLEANS = _BOOLEANS | {"yes", "no", "t", "f", "y", "n"}
#: parameters of NVIDIA's own models that the emitted ones do not have
_OTHERS = {
    "preprocessing": {"multimodal_model_path", "gpt_model_path", "max_num_images", "vocab_size"},
    "postprocessing": set(),
    "tensorrt_llm_bls": {"tokenizer_dir", "skip_special_tokens"},
    "tensorrt_llm": set(),
}
_MANDATORY = {
    "tensorrt_llm": ("gpt_model_path", "gpt_model_type"),
    "preprocessing": ("tokenizer_dir",),
    "postprocessing": ("tokenizer_dir",),
    "tensorrt_llm_bls": (),
}
_ENUMERATIONS_THAT_STOP = frozenset({"gpt_model_type", "guided_decoding_backend"})


def rows_of(name: str) -> dict[str, Parameter]:
    """The parameter table's rows of a role, older names included."""
    table = load_parameters("inflight_batcher_llm")
    return {row.name: row for row in table.rows if row.place == "parameter" and name in row.models}


def each_role(
    check: Callable[[Model, str, dict[str, Parameter]], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every TensorRT-LLM model, with its role and its rows."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        found = _judged_role(model)
        if found is not None:
            yield from check(model, found, rows_of(found))

    return each_model(functools.wraps(check)(checked))


def _judged_role(model: Model) -> str | None:
    """The role of a model whose parameters can be read."""
    return role(model) if model.readable and model.knows("parameters") else None


@rule("TF-TRI-180", "error", "a parameter that must be set is not", thread("TB#61"))
@each_role
def mandatory(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    """Without the engine's or the tokenizer's folder the model cannot load; an unfilled ${…} is taken as a path."""
    for name in _MANDATORY[found]:
        text = model.raw_parameter(name)
        if text is None:
            if name == "gpt_model_type":
                continue  # the backend says in-flight batching itself when it is missing
            if model.code is not None and model.backend == "python" and name not in model.code:
                continue  # another code than NVIDIA's, which does not ask for it
            remedy = person(f'parameters {{ key: "{name}" value {{ string_value: "…" }} }}')
            yield hit(model, f"{name} is missing", remedy, "parameters")
        elif not text.strip():
            yield hit(model, f"{name} is empty", _usual(model, name, rows), *at(model, name))
        elif HOLE.search(text):
            message = f"{name} is {text!r}: not filled in"
            yield hit(model, message, _usual(model, name, rows), *at(model, name))


def _usual(model: Model, name: str, rows: dict[str, Parameter]) -> Remedy:
    """The value that NVIDIA's guide fills in; a path only its owner knows."""
    row = rows.get(name)
    if row is not None and row.default:
        return parameter(model, name, row.default)
    return person(f"fill {(row.template if row is not None else None) or name} in: a path")


@rule("TF-TRI-181", "note", "optional parameters were left as placeholders", TRTLLM_PARAMETERS)
@each_role
def optional_holes(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    """The backend takes an unfilled ${…} of an optional parameter as not set and uses its default, as in NVIDIA's own
    guide; a value that was meant to be set is not."""
    holes = [
        name
        for name in model.message.parameters
        if HOLE.search(model.message.parameters[name].string_value) and name not in _MANDATORY[found]
    ]
    if holes:
        yield hit(
            model,
            f"{len(holes)} optional parameter{'s are' if len(holes) > 1 else ' is'} not filled in: {listed(holes)}",
            (together(*(no_parameter(model, name) for name in holes), text="leave them out"), person("fill them in")),
            *at(model, sorted(holes)[0]),
        )


@rule("TF-TRI-182", "warning", "a parameter is not known", TRTLLM_PARAMETERS)
@each_role
def unknown_parameter(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    """The backend asks for the names that it knows and never sees this one; its default holds instead."""
    known = set(rows) | _OTHERS[found]
    old = load_history().old_names(found)
    for name in sorted(set(model.message.parameters) - known - set(old)):
        strict = found == "tensorrt_llm" and model.backend == "tensorrtllm"
        near = nearest(name, known | set(old), cutoff=0.6 if strict else 0.85)
        if near or strict:
            remedy = _named(model, name, near) if near else no_parameter(model, name, "leave it out")
            yield hit(model, f"{name} is no parameter of {found}", remedy, "parameters", f"key={name}", "key")


def _named(model: Model, name: str, new: str, value: str | None = None) -> Remedy:
    """Another name for a parameter; only out with it where the right one is set already."""
    if new in model.message.parameters:
        return no_parameter(model, name, f"leave it out: {new} is set")
    edits = put(model, f'"{new}"', "parameters", f"key={name}", "key").edits
    if value is not None:
        edits = parameter(model, name, value).edits + edits
    return Remedy(f'key: "{new}"' + (f', "{value}"' if value is not None else ""), edits)


@rule("TF-TRI-187", "warning", "a parameter of an older version", TRTLLM_PARAMETERS)
def old_parameter(repository: Repository) -> Iterator[Hit]:
    """The backend has dropped or renamed it; the setting is lost without an error. A note where no parameter of the
    repository is newer than the change: a backend of that age reads it."""
    history = load_history()
    models = [(model, found) for model in repository.models.values() if (found := _judged_role(model)) is not None]
    # the oldest version that all parameters can be of
    least = max(
        (
            history.index(since)
            for model, found in models
            for name in model.message.parameters
            if (since := history.since(found, name)) is not None
        ),
        default=0,
    )
    for model, found in models:
        for name, change in history.old_names(found).items():
            if name not in model.message.parameters or model.parameter(name) is None:
                continue
            renamed, ignored = change.kind == "renamed", change.kind == "ignored"
            said = f"is called {change.to}" if renamed else "has no effect" if ignored else "is gone"
            yield hit(
                model,
                f"{name} {said} since {change.version}" + ("" if renamed else f": {change.says}"),
                _named(model, name, change.to, change.replace)
                if renamed and change.to
                else (no_parameter(model, name, "leave it out"), person("trtforge triton upgrade")),
                "parameters",
                f"key={name}",
                "key",
                severity="note" if ignored or least < history.index(change.version) else None,
            )


@rule("TF-TRI-183", "error", "a parameter's value is of the wrong type or outside its range", _CODE)
@each_role
def values(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    """The backend refuses it, or puts its default in its place and says so in the log only."""
    for name, row in rows.items():
        text = model.parameter(name)
        if text is None or row.kind == "choice":
            continue
        fault = _fault(row, text, found)
        if fault:
            message = f"{name}: {fault} ({row.allowed})"
            yield hit(model, message, _within(model, name, row, text), *at(model, name))


def _within(model: Model, name: str, row: Parameter, text: str) -> tuple[Remedy, ...]:
    """The value that a wrong one meant, and the default."""
    ways: list[Remedy] = []
    percent = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%", text)
    if percent and row.kind in ("share", "fraction"):
        ways.append(parameter(model, name, f"{float(percent.group(1)) / 100:g}"))
    if row.kind == "boolean" and text.lower() in ("yes", "on", "no", "off"):
        ways.append(parameter(model, name, "true" if text.lower() in ("yes", "on") else "false"))
    if row.kind == "devices" and re.fullmatch(r"[0-9]+( +[0-9]+)+", text.strip()):
        devices = text.split()
        several = sum(max(group.count, 1) for group in model.message.instance_group) == len(devices)
        ways.append(parameter(model, name, (";" if several and len(devices) > 1 else ",").join(devices)))
    if row.required:
        return tuple(ways) or (person(f"{name}: {row.allowed}"),)
    return (*ways, no_parameter(model, name, "leave it out" + (f", for {row.default}" if row.default else "")))


def _fault(row: Parameter, text: str, found: str) -> str | None:
    if row.kind == "boolean":
        allowed = _BOOLEANS if found == "tensorrt_llm" else _PYTHON_BOOLEANS
        return None if text.lower() in allowed else f"{text!r} is neither true nor false"
    if row.kind == "choices":
        return row.fault(re.sub(r"\s+", " ", text).replace(",{", ", {"))
    if row.kind in ("integer", "integers"):
        return row.fault(text.replace(" ", ""))
    return row.fault(text)


@rule("TF-TRI-185", "error", "a parameter's value is none of the known ones", _CODE)
@each_role
def choices(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    """gpt_model_type and guided_decoding_backend stop the load; for the others the default holds silently."""
    for name, row in rows.items():
        text = model.parameter(name)
        if text is None or row.kind != "choice":
            continue
        known = {value.lower(): value for value in row.values}
        exact = text in row.values or (name == "gpt_model_type" and text.lower() in known)
        if not exact:
            near = known.get(text.lower()) or nearest(text, row.values)
            yield hit(
                model,
                f"{name} {text!r} is none of {', '.join(row.values)}",
                (
                    parameter(model, name, near or row.default or row.values[0])
                    if near or row.default
                    else no_parameter(model, name)
                ),
                *at(model, name),
                severity=None if name in _ENUMERATIONS_THAT_STOP else "warning",
            )
