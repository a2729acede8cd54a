"""Rules on ensembles: their steps, the models that these name, and what those allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from triton_repo.lint.ensemble_graph import each_ensemble, judged, running_order, step_path
from triton_repo.lint.ensemble_remedies import another_key
from triton_repo.lint.hits import TRITON_ENSEMBLE, Hit, each_model, hit, hit_node, listed, rule
from triton_repo.lint.remedies import drop, here, out, person, put
from triton_repo.lint.repository import HOLE, Model, Repository
from trtforge.ground.names import nearest
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(50, "Ensembles")


@rule("TF-TRI-160", "error", "an ensemble is declared by halves", TRITON_ENSEMBLE)
@each_model
def halves(model: Model, repository: Repository) -> Iterator[Hit]:
    """An ensemble has platform ensemble, no backend, and at least one step."""
    message = model.message
    scheduling = message.HasField("ensemble_scheduling")
    if scheduling and message.platform != "ensemble" and model.knows("platform"):
        given = f"platform {message.platform!r}" if message.platform else "no platform"
        yield hit(model, f"ensemble_scheduling with {given}", put(model, '"ensemble"', "platform"), "platform")
    if message.platform == "ensemble":
        if message.backend:
            yield hit(model, f"platform ensemble with backend {message.backend!r}", out("no backend"), "backend")
        if not message.ensemble_scheduling.step and model.knows("ensemble_scheduling"):
            remedy = person("ensemble_scheduling { step [ … ] }")
            yield hit(model, "the ensemble has no step", remedy, "ensemble_scheduling")


@rule("TF-TRI-161", "error", "an ensemble sets what only its steps may", TRITON_ENSEMBLE)
@each_ensemble
def not_for_ensembles(model: Model, repository: Repository) -> Iterator[Hit]:
    """An ensemble runs nothing itself: Triton refuses instance groups, optimization and warm-up on one."""
    stated = {field.name for field, _ in model.message.ListFields()}
    for name in ("instance_group", "optimization", "model_warmup"):
        if name in stated:
            yield hit(model, f"an ensemble with {name}", out("leave it out; the steps' models may have it"), name)


@rule("TF-TRI-162", "error", "an ensemble names a model that is not there", TRITON_ENSEMBLE)
@each_ensemble
def unknown_model(model: Model, repository: Repository) -> Iterator[Hit]:
    """Every step's model is in a repository of the same server."""
    broken = {problem.path.name for problem in repository.problems}
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        name = step.model_name
        if not name or HOLE.search(name) or step.model_namespace or name in broken:
            continue
        if repository.get(name) is None:
            fitting = [other.name for other in repository.models.values() if _takes(other, step)]
            near = nearest(name, fitting)
            remedy = here(f'"{near}"') if near else person("one of " + listed(repository.models))
            yield hit(model, f"step {index + 1}: there is no model {name!r}", remedy, *step_path(index, "model_name"))


def _takes(model: Model, step: Any) -> bool:
    """Whether a model has the tensors that a step maps, and needs no other."""
    if not model.readable:
        return False
    inputs, outputs = model.message.input, model.message.output
    needed = {row.name for row in inputs if not row.optional}
    return needed <= set(step.input_map) <= {row.name for row in inputs} and set(step.output_map) <= {
        row.name for row in outputs
    }


@rule("TF-TRI-163", "error", "a step is incomplete", TRITON_ENSEMBLE)
@each_ensemble
def incomplete_step(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step has a model, at least one input and at least one output."""
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field) and model.knows("ensemble_scheduling", "step", field):
                remedy = person(f"{field}: …")
                yield hit(model, f"step {index + 1} has no {field}", remedy, *step_path(index, "model_name"))


@rule("TF-TRI-164", "error", "a step maps a tensor that its model does not have", TRITON_ENSEMBLE)
@each_ensemble
def unknown_tensor(model: Model, repository: Repository) -> Iterator[Hit]:
    """The keys of input_map and output_map are the model's own names."""
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = judged(repository, step.model_name)
        if used is None:
            continue
        for field, rows in (("input", used.message.input), ("output", used.message.output)):
            known = {row.name for row in rows}
            for key in getattr(step, f"{field}_map"):
                if key not in known:
                    near = nearest(key, known)
                    message = f"step {index + 1}: {used.name} has no {field} {key!r}"
                    remedy = (
                        another_key(near)
                        if near and near not in getattr(step, f"{field}_map")
                        else person("one of " + listed(known))
                    )
                    yield hit(model, message, remedy, *step_path(index, f"{field}_map", f"key={key}", "key"))


@rule("TF-TRI-165", "error", "a required input of a step is not mapped", TRITON_ENSEMBLE)
@each_ensemble
def unmapped_input(model: Model, repository: Repository) -> Iterator[Hit]:
    """A model's input that is not optional gets a tensor of the ensemble."""
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = judged(repository, step.model_name)
        if used is None or not used.knows("input", "optional"):
            continue
        for row in used.message.input:
            if not row.optional and row.name not in step.input_map:
                message = f"step {index + 1}: input {row.name!r} of {used.name} gets nothing"
                remedies = [
                    person(f'input_map {{ key: "{row.name}" value: "…" }}'),
                    person(f"optional: true in {used.name}, if it can do without"),
                ]
                yield hit(model, message, remedies, *step_path(index, "model_name"))


@rule("TF-TRI-177", "error", "a step maps one name twice", TRITON_ENSEMBLE)
@each_ensemble
def mapped_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    """The second entry of a map replaces the first without a word; the tensor of the first gets lost."""
    assert model.config is not None
    scheduling = model.config.text.find("ensemble_scheduling")
    for index, step in enumerate(scheduling.all("step") if scheduling is not None else []):
        for field in ("input_map", "output_map"):
            keys = [node.first("key") for node in step.all(field)]
            counts = Counter(key.string() for key in keys if key is not None)
            for name, count in counts.items():
                if count > 1:
                    last = [key for key in keys if key is not None and key.string() == name][-1]
                    message = f"step {index + 1}: {field} has {name!r} {count} times"
                    yield hit_node(model, last.value_start, message, person("one entry a name"))


@rule("TF-TRI-173", "error", "the ensemble's batch is larger than a step's", thread("TB#189"))
@each_ensemble
def batch_sizes(model: Model, repository: Repository) -> Iterator[Hit]:
    """A request goes through every step whole; Triton refuses a step with a smaller max_batch_size."""
    size = model.message.max_batch_size
    sizes: dict[str, int] = {}
    for step in model.message.ensemble_scheduling.step:
        used = repository.get(step.model_name)
        if (
            used is not None
            and used.knows("max_batch_size")
            and (used.message.max_batch_size or used.states("max_batch_size"))
        ):
            sizes[step.model_name] = used.message.max_batch_size
    small = {name: value for name, value in sizes.items() if 0 < value < size}
    if small and model.knows("max_batch_size"):
        fit = min(small.values())
        yield hit(
            model,
            f"max_batch_size {size} here, " + ", ".join(f"{value} in {name}" for name, value in sorted(small.items())),
            (here(str(fit), f"max_batch_size: {fit} here"), person(f"{size} in {listed(small)}")),
            "max_batch_size",
        )


@rule("TF-TRI-174", "error", "the ensemble's decoupled flag contradicts its steps", thread("TB#177"))
@each_ensemble
def decoupled_flags(model: Model, repository: Repository) -> Iterator[Hit]:
    """An ensemble is decoupled when one of its steps is; what its own file says is replaced, and a step cannot join the
    streams of two decoupled models."""
    steps = model.message.ensemble_scheduling.step
    models = [repository.get(step.model_name) for step in steps]
    if any(used is None or not used.knows("model_transaction_policy", "decoupled") for used in models):
        return
    flags = [bool(used.message.model_transaction_policy.decoupled) for used in models if used is not None]
    stated = model.message.HasField("model_transaction_policy") and model.knows("model_transaction_policy", "decoupled")
    own = bool(model.message.model_transaction_policy.decoupled)
    if stated and own != any(flags):
        streams = listed({s.model_name for s, f in zip(steps, flags, strict=True) if f})
        yield hit(
            model,
            f"decoupled: {str(own).lower()} here, and "
            + (f"{streams} is decoupled" if any(flags) else "no step is decoupled"),
            (here(str(any(flags)).lower()), drop(model, "model_transaction_policy")),
            "model_transaction_policy",
            "decoupled",
        )
    yield from _joined(model, flags)


def _joined(model: Model, flags: list[bool]) -> Iterator[Hit]:
    """Steps that read the outputs of different decoupled steps."""
    steps = model.message.ensemble_scheduling.step
    streams: dict[str, frozenset[int]] = {row.name: frozenset() for row in model.message.input}
    for index in running_order(model)[0]:
        if not all(tensor in streams for tensor in steps[index].input_map.values()):
            return
        labels = {streams[tensor] for tensor in steps[index].input_map.values()}
        if len(labels) > 1:
            message = f"step {index + 1} ({steps[index].model_name}) reads tensors of different decoupled steps"
            remedy = person("the tensors of one stream, or a BLS model that joins them")
            yield hit(model, message, remedy, *step_path(index, "input_map"))
            return
        label = frozenset({index}) if flags[index] else next(iter(labels), frozenset())
        streams.update(dict.fromkeys(steps[index].output_map.values(), label))
    ends = {streams[row.name] for row in model.message.output if row.name in streams}
    if len(ends) > 1:
        message = "the ensemble's outputs come from different decoupled steps"
        yield hit(model, message, person("outputs of one stream, or a BLS model that joins them"), "output")


@rule("TF-TRI-176", "error", "a step asks for a version that is not there", thread("TS#5474"))
@each_ensemble
def step_version(model: Model, repository: Repository) -> Iterator[Hit]:
    """model_version is -1 for the latest, or the number of a version folder; left out, it is 0."""
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = repository.get(step.model_name)
        if used is None or step.model_version == -1 or not used.versions or not model.knows("ensemble_scheduling"):
            continue
        there = [version.number for version in used.versions]
        if step.model_version not in there and model.knows("ensemble_scheduling", "step", "model_version"):
            stated = model.states(*step_path(index, "model_version"))
            asked = f"version {step.model_version}" + ("" if stated else ", which is asked for when nothing is said")
            message = f"step {index + 1}: {used.name} has no {asked} (it has {there})"
            remedy = put(model, "-1", *step_path(index, "model_version"))
            yield hit(model, message, remedy, *step_path(index, "model_version" if stated else "model_name"))
