"""Rules on the tensors of an ensemble: who writes each and who reads it, and that both say the same of it.

The checks are Triton's own (https://github.com/triton-inference-server/core, BuildEnsembleGraph and
ValidateEnsembleConfig), made before a server is there and with all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from triton_repo.lint.checks import ensemble
from triton_repo.lint.ensemble_graph import End, all_named, each_ensemble, graph_of, running_order, step_path
from triton_repo.lint.ensemble_remedies import no_input, other_output, owned, shaped
from triton_repo.lint.hits import TRITON_ENSEMBLE, Hit, hit, listed, rule
from triton_repo.lint.remedies import drop, here, person
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.shapes import agree, full, text
from trtforge.ground.names import nearest

SECTION = ensemble.SECTION

_CORE = "https://github.com/triton-inference-server/core/blob/main/src/ensemble_scheduler/ensemble_utils.cc"


@rule("TF-TRI-167", "error", "a step reads a tensor that nobody writes", TRITON_ENSEMBLE)
@each_ensemble
def unwritten(model: Model, repository: Repository) -> Iterator[Hit]:
    """A tensor comes from the ensemble's inputs or from another step; otherwise its step never runs."""
    if not all_named(model):
        return
    graph = graph_of(model, repository)
    for tensor, readers in graph.readers.items():
        if tensor in graph.writers or HOLE.search(tensor):
            continue
        near = nearest(tensor, graph.writers)
        for index, key in readers:
            if index >= 0:
                message = f"step {index + 1}: nothing writes {tensor!r}, which {key!r} reads"
                remedy = here(f'"{near}"') if near else person("an input of the ensemble or an output of a step")
                yield hit(model, message, remedy, *step_path(index, "input_map", f"key={key}", "value"))
            else:
                message = f"output {tensor!r} of the ensemble is written by no step"
                remedies = other_output(model, repository, tensor, near)
                yield hit(model, message, remedies, "output", f"name={tensor}", "name")


@rule("TF-TRI-168", "error", "two steps write one tensor", _CORE)
@each_ensemble
def written_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    """A tensor of an ensemble is written once; which of the two would count is not defined."""
    for tensor, writers in graph_of(model, repository).writers.items():
        if len(writers) > 1:
            index, key = writers[-1]
            others = ", ".join("the ensemble's input" if i < 0 else f"step {i + 1}" for i, _ in writers[:-1])
            place = step_path(index, "output_map", f"key={key}", "value") if index >= 0 else ("input", f"name={tensor}")
            yield hit(model, f"{tensor!r} is also written by {others}", person("another value"), *place)


@rule("TF-TRI-169", "error", "a tensor of the ensemble is not used", _CORE)
@each_ensemble
def unused(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton refuses an ensemble with an input that no step reads, or with a step's output that nobody reads."""
    if not all_named(model):
        return
    graph = graph_of(model, repository)
    for tensor, writers in graph.writers.items():
        if tensor in graph.readers:
            continue
        index, key = writers[0]
        near = nearest(tensor, set(graph.readers) - set(graph.writers))
        if index < 0:
            message = f"no step reads the input {tensor!r} of the ensemble"
            remedies = [*no_input(model, repository, tensor), person(f'input_map {{ … value: "{tensor}" }}')]
            yield hit(model, message, remedies, "input", f"name={tensor}", "name")
        else:
            message = f"step {index + 1}: nobody reads {tensor!r}"
            remedy = (
                here(f'"{near}"')
                if near
                else drop(model, *step_path(index, "output_map", f"key={key}"), text=f"leave the entry of {key!r} out")
            )
            yield hit(model, message, remedy, *step_path(index, "output_map", f"key={key}", "value"))


@rule("TF-TRI-170", "error", "an ensemble waits for itself", _CORE)
@each_ensemble
def cycles(model: Model, repository: Repository) -> Iterator[Hit]:
    """Steps that wait for each other never start, and ensembles that hold each other never load."""
    steps = model.message.ensemble_scheduling.step
    waiting = running_order(model)[1]
    if waiting:
        index = min(waiting)
        names = ", ".join(f"{i + 1} ({steps[i].model_name})" for i in sorted(waiting))
        message = f"steps {names} wait for each other through {listed(waiting[index])}"
        yield hit(model, message, person("an input of the ensemble in one of them"), *step_path(index, "input_map"))
    yield from _nested(model, repository)


def _nested(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, step in enumerate(model.message.ensemble_scheduling.step):
        seen: set[str] = set()
        todo = [step.model_name]
        while todo:
            name = todo.pop()
            if name == model.name:
                message = f"step {index + 1}: {step.model_name!r} holds this ensemble again"
                yield hit(model, message, person("a step that is another model"), *step_path(index, "model_name"))
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


@rule("TF-TRI-171", "error", "a tensor has two data types", _CORE)
@each_ensemble
def data_types(model: Model, repository: Repository) -> Iterator[Hit]:
    """An ensemble hands a tensor on as it is; the type of who writes it is the type of who reads it."""
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


@rule("TF-TRI-172", "error", "a tensor has two shapes", _CORE)
@each_ensemble
def shapes(model: Model, repository: Repository) -> Iterator[Hit]:
    """Where both declarations fix an axis they must fix it alike, the batch axis included."""
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
