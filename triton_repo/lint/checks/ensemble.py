"""Rules on ensembles: the graph of tensors between the steps, and what the steps' models allow.

The checks are Triton's own (https://github.com/triton-inference-server/core, BuildEnsembleGraph and
ValidateEnsembleConfig), made before a server is there and with all faults at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from triton_repo.lint.ensemble_graph import End, all_named, each_ensemble, graph_of, judged, running_order, step_path
from triton_repo.lint.ensemble_remedies import another_key, no_input, other_output, owned, shaped
from triton_repo.lint.hits import TRITON_ENSEMBLE, Hit, each_model, hit, listed, rule, thread
from triton_repo.lint.remedies import drop, here, out, person, put
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.shapes import agree, full, text
from trtforge.ground.names import nearest
from trtforge.rules.tables import Section

SECTION = Section(50, "Ensembles")

_CORE = "https://github.com/triton-inference-server/core/blob/main/src/ensemble_scheduler/ensemble_utils.cc"


@rule(
    "TF-TRI-160",
    "error",
    "an ensemble is declared by halves",
    why="An ensemble has platform ensemble, no backend, and at least one step.",
    source=TRITON_ENSEMBLE,
)
@each_model
def halves(model: Model, repository: Repository) -> Iterator[Hit]:
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


@rule(
    "TF-TRI-161",
    "error",
    "an ensemble sets what only its steps may",
    why="An ensemble runs nothing itself: Triton refuses instance groups, optimization and warm-up on one.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def not_for_ensembles(model: Model, repository: Repository) -> Iterator[Hit]:
    message = model.message
    if message.instance_group:
        yield hit(
            model,
            "an ensemble with instance_group",
            out("leave it out; the steps' models may have it"),
            "instance_group",
        )
    if message.HasField("optimization"):
        yield hit(
            model, "an ensemble with optimization", out("leave it out; the steps' models may have it"), "optimization"
        )
    if message.model_warmup:
        yield hit(
            model, "an ensemble with model_warmup", out("leave it out; the steps' models may have it"), "model_warmup"
        )


@rule(
    "TF-TRI-162",
    "error",
    "an ensemble names a model that is not there",
    why="Every step's model is in a repository of the same server.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def unknown_model(model: Model, repository: Repository) -> Iterator[Hit]:
    broken = {problem.path.name for problem in repository.problems}
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        name = step.model_name
        if not name or HOLE.search(name) or step.model_namespace or name in broken:
            continue
        if repository.get(name) is None:
            fitting = [other.name for other in repository.models.values() if _takes(other, step)]
            near = nearest(name, fitting)
            yield hit(
                model,
                f"step {index + 1}: there is no model {name!r}",
                here(f'"{near}"') if near else person("one of " + listed(repository.models)),
                *step_path(index, "model_name"),
            )


def _takes(model: Model, step: Any) -> bool:
    """Whether a model has the tensors that a step maps, and needs no other."""
    if not model.readable:
        return False
    inputs, outputs = model.message.input, model.message.output
    needed = {row.name for row in inputs if not row.optional}
    return needed <= set(step.input_map) <= {row.name for row in inputs} and set(step.output_map) <= {
        row.name for row in outputs
    }


@rule(
    "TF-TRI-163",
    "error",
    "a step is incomplete",
    why="A step has a model, at least one input and at least one output.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def incomplete_step(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field) and model.knows("ensemble_scheduling", "step", field):
                remedy = person(f"{field}: …")
                yield hit(model, f"step {index + 1} has no {field}", remedy, *step_path(index, "model_name"))


@rule(
    "TF-TRI-164",
    "error",
    "a step maps a tensor that its model does not have",
    why="The keys of input_map and output_map are the model's own names.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def unknown_tensor(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = judged(repository, step.model_name)
        if used is None:
            continue
        for field, rows in (("input", used.message.input), ("output", used.message.output)):
            known = {row.name for row in rows}
            for key in getattr(step, f"{field}_map"):
                if key not in known:
                    near = nearest(key, known)
                    yield hit(
                        model,
                        f"step {index + 1}: {used.name} has no {field} {key!r}",
                        another_key(near)
                        if near and near not in getattr(step, f"{field}_map")
                        else person("one of " + listed(known)),
                        *step_path(index, f"{field}_map", f"key={key}", "key"),
                    )


@rule(
    "TF-TRI-165",
    "error",
    "a required input of a step is not mapped",
    why="A model's input that is not optional gets a tensor of the ensemble.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def unmapped_input(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = judged(repository, step.model_name)
        if used is None or not used.knows("input", "optional"):
            continue
        for row in used.message.input:
            if not row.optional and row.name not in step.input_map:
                yield hit(
                    model,
                    f"step {index + 1}: input {row.name!r} of {used.name} gets nothing",
                    (
                        person(f'input_map {{ key: "{row.name}" value: "…" }}'),
                        person(f"optional: true in {used.name}, if it can do without"),
                    ),
                    *step_path(index, "model_name"),
                )


@rule(
    "TF-TRI-177",
    "error",
    "a step maps one name twice",
    why="The second entry of a map replaces the first without a word; the tensor of the first gets lost.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def mapped_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    assert model.config is not None
    scheduling = model.config.text.find("ensemble_scheduling")
    for index, step in enumerate(scheduling.all("step") if scheduling is not None else []):
        for field in ("input_map", "output_map"):
            keys = [node.first("key") for node in step.all(field)]
            counts = Counter(key.string() for key in keys if key is not None)
            for name, count in counts.items():
                if count > 1:
                    last = [key for key in keys if key is not None and key.string() == name][-1]
                    line, column = model.config.text.position(last.value_start)
                    yield Hit(
                        f"step {index + 1}: {field} has {name!r} {count} times",
                        (person("one entry a name"),),
                        model.name,
                        model.path,
                        line,
                        column,
                    )


@rule(
    "TF-TRI-167",
    "error",
    "a step reads a tensor that nobody writes",
    why="A tensor comes from the ensemble's inputs or from another step; otherwise its step never runs.",
    source=TRITON_ENSEMBLE,
)
@each_ensemble
def unwritten(model: Model, repository: Repository) -> Iterator[Hit]:
    if not all_named(model):
        return
    graph = graph_of(model, repository)
    for tensor, readers in graph.readers.items():
        if tensor in graph.writers or HOLE.search(tensor):
            continue
        near = nearest(tensor, graph.writers)
        for index, key in readers:
            if index >= 0:
                yield hit(
                    model,
                    f"step {index + 1}: nothing writes {tensor!r}, which {key!r} reads",
                    here(f'"{near}"') if near else person("an input of the ensemble or an output of a step"),
                    *step_path(index, "input_map", f"key={key}", "value"),
                )
            else:
                yield hit(
                    model,
                    f"output {tensor!r} of the ensemble is written by no step",
                    other_output(model, repository, tensor, near),
                    "output",
                    f"name={tensor}",
                    "name",
                )


@rule(
    "TF-TRI-168",
    "error",
    "two steps write one tensor",
    why="A tensor of an ensemble is written once; which of the two would count is not defined.",
    source=_CORE,
)
@each_ensemble
def written_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    for tensor, writers in graph_of(model, repository).writers.items():
        if len(writers) > 1:
            index, key = writers[-1]
            others = ", ".join("the ensemble's input" if i < 0 else f"step {i + 1}" for i, _ in writers[:-1])
            place = step_path(index, "output_map", f"key={key}", "value") if index >= 0 else ("input", f"name={tensor}")
            yield hit(model, f"{tensor!r} is also written by {others}", person("another value"), *place)


@rule(
    "TF-TRI-169",
    "error",
    "a tensor of the ensemble is not used",
    why="Triton refuses an ensemble with an input that no step reads, or with a step's output that nobody reads.",
    source=_CORE,
)
@each_ensemble
def unused(model: Model, repository: Repository) -> Iterator[Hit]:
    if not all_named(model):
        return
    graph = graph_of(model, repository)
    for tensor, writers in graph.writers.items():
        if tensor in graph.readers:
            continue
        index, key = writers[0]
        near = nearest(tensor, set(graph.readers) - set(graph.writers))
        if index < 0:
            yield hit(
                model,
                f"no step reads the input {tensor!r} of the ensemble",
                (
                    *no_input(model, repository, tensor),
                    person(f'input_map {{ … value: "{tensor}" }}'),
                ),
                "input",
                f"name={tensor}",
                "name",
            )
        else:
            yield hit(
                model,
                f"step {index + 1}: nobody reads {tensor!r}",
                here(f'"{near}"')
                if near
                else drop(model, *step_path(index, "output_map", f"key={key}"), text=f"leave the entry of {key!r} out"),
                *step_path(index, "output_map", f"key={key}", "value"),
            )


@rule(
    "TF-TRI-170",
    "error",
    "an ensemble waits for itself",
    why="Steps that wait for each other never start, and ensembles that hold each other never load.",
    source=_CORE,
)
@each_ensemble
def cycles(model: Model, repository: Repository) -> Iterator[Hit]:
    steps = model.message.ensemble_scheduling.step
    waiting = running_order(model)[1]
    if waiting:
        index = min(waiting)
        names = ", ".join(f"{i + 1} ({steps[i].model_name})" for i in sorted(waiting))
        yield hit(
            model,
            f"steps {names} wait for each other through {listed(waiting[index])}",
            person("an input of the ensemble in one of them"),
            *step_path(index, "input_map"),
        )
    yield from _nested(model, repository)


def _nested(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        seen: set[str] = set()
        todo = [step.model_name]
        while todo:
            name = todo.pop()
            if name == model.name:
                yield hit(
                    model,
                    f"step {index + 1}: {step.model_name!r} holds this ensemble again",
                    person("a step that is another model"),
                    *step_path(index, "model_name"),
                )
                break
            inner = repository.get(name)
            if name in seen or inner is None or not inner.is_ensemble:
                continue
            seen.add(name)
            todo += [s.model_name for s in inner.message.ensemble_scheduling.step]


def _mismatches(model: Model, repository: Repository) -> Iterator[tuple[str, End, End, bool]]:
    """(tensor, who has it first, another, whether these two are all that have it)."""
    for tensor, ends in graph_of(model, repository).ends.items():
        for end in ends[1:]:
            yield tensor, ends[0], end, len(ends) == 2


@rule(
    "TF-TRI-171",
    "error",
    "a tensor has two data types",
    why="An ensemble hands a tensor on as it is; the type of who writes it is the type of who reads it.",
    source=_CORE,
)
@each_ensemble
def data_types(model: Model, repository: Repository) -> Iterator[Hit]:
    from tritonclient.grpc import model_config_pb2 as pb

    if not (model.knows("input", "data_type") and model.knows("output", "data_type")):
        return
    for tensor, first, end, alone in _mismatches(model, repository):
        if first.row.data_type != end.row.data_type and first.row.data_type and end.row.data_type:
            one, other = pb.DataType.Name(first.row.data_type), pb.DataType.Name(end.row.data_type)
            yield hit(
                model,
                f"{tensor!r} is {one} in {first.owner} ({first.row.name}) and {other} in {end.owner} ({end.row.name})",
                (
                    owned(repository, end, "data_type", one),
                    *((owned(repository, first, "data_type", other),) if alone else ()),
                ),
                *end.place,
            )


@rule(
    "TF-TRI-172",
    "error",
    "a tensor has two shapes",
    why="Where both declarations fix an axis they must fix it alike, the batch axis included.",
    source=_CORE,
)
@each_ensemble
def shapes(model: Model, repository: Repository) -> Iterator[Hit]:
    if not (model.knows("input", "dims") and model.knows("output", "dims") and model.knows("max_batch_size")):
        return
    for tensor, first, end, alone in _mismatches(model, repository):
        one, other = full(first.dims, first.batching), full(end.dims, end.batching)
        if not agree(first.dims, end.dims) and not agree(one, other):
            yield hit(
                model,
                f"{tensor!r} is {text(one)} in {first.owner} ({first.row.name}) and {text(other)} in {end.owner} "
                f"({end.row.name}), batch axis included",
                shaped(repository, first, end, alone)
                if first.batching == end.batching
                else person(f"batch sizes of {first.owner} and {end.owner} that are both 0 or both above it"),
                *end.place,
            )


@rule(
    "TF-TRI-173",
    "error",
    "the ensemble's batch is larger than a step's",
    why="A request goes through every step whole; Triton refuses a step with a smaller max_batch_size.",
    source=thread("TB#189"),
)
@each_ensemble
def batch_sizes(model: Model, repository: Repository) -> Iterator[Hit]:
    size = model.message.max_batch_size
    sizes: dict[str, int] = {}
    for step in model.message.ensemble_scheduling.step:
        used = repository.get(step.model_name)
        if (
            used is not None
            and used.knows("max_batch_size")
            and (used.message.max_batch_size or (used.config is not None and used.config.states("max_batch_size")))
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


@rule(
    "TF-TRI-174",
    "error",
    "the ensemble's decoupled flag contradicts its steps",
    why="An ensemble is decoupled when one of its steps is; what its own file says is replaced, and a step "
    "cannot join the streams of two decoupled models.",
    source=thread("TB#177"),
)
@each_ensemble
def decoupled_flags(model: Model, repository: Repository) -> Iterator[Hit]:
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
            yield hit(
                model,
                f"step {index + 1} ({steps[index].model_name}) reads tensors of different decoupled steps",
                person("the tensors of one stream, or a BLS model that joins them"),
                *step_path(index, "input_map"),
            )
            return
        label = frozenset({index}) if flags[index] else next(iter(labels), frozenset())
        streams.update(dict.fromkeys(steps[index].output_map.values(), label))
    ends = {streams[row.name] for row in model.message.output if row.name in streams}
    if len(ends) > 1:
        yield hit(
            model,
            "the ensemble's outputs come from different decoupled steps",
            person("outputs of one stream, or a BLS model that joins them"),
            "output",
        )


@rule(
    "TF-TRI-176",
    "error",
    "a step asks for a version that is not there",
    why="model_version is -1 for the latest, or the number of a version folder; left out, it is 0.",
    source=thread("TS#5474"),
)
@each_ensemble
def step_version(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        used = repository.get(step.model_name)
        if used is None or step.model_version == -1 or not used.versions or not model.knows("ensemble_scheduling"):
            continue
        there = [version.number for version in used.versions]
        if step.model_version not in there and model.knows("ensemble_scheduling", "step", "model_version"):
            stated = model.config is not None and model.config.states(*step_path(index, "model_version"))
            asked = f"version {step.model_version}" + ("" if stated else ", which is asked for when nothing is said")
            yield hit(
                model,
                f"step {index + 1}: {used.name} has no {asked} (it has {there})",
                put(model, "-1", *step_path(index, "model_version")),
                *step_path(index, "model_version" if stated else "model_name"),
            )
