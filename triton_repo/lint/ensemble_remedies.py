"""What would work in an ensemble: edits of its steps, and of the models that they ask."""

from __future__ import annotations

from triton_repo.lint.ensemble_graph import End, graph_of, step_path
from triton_repo.lint.remedies import Remedy, drop, here, person, put
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.shapes import text


def another_key(name: str) -> Remedy:
    """Another key where the finding is."""
    return here(f'"{name}"')


def owned(repository: Repository, end: End, field: str, value: str) -> Remedy:
    """A field of the tensor that an end is, in the model that has it."""
    owner = repository.get(end.owner)
    if owner is None:
        return person(f"{field}: {value} in {end.owner}")
    side = "input" if any(row is end.row for row in owner.message.input) else "output"
    return put(owner, value, side, f"name={end.row.name}", field, text=f"{field}: {value} in {end.owner}")


def no_input(model: Model, repository: Repository, name: str) -> tuple[Remedy, ...]:
    """Take an input of an ensemble out, where others are left and no other ensemble gives it."""
    given = any(
        step.model_name == model.name
        for other in repository.models.values()
        if other.is_ensemble
        for step in other.message.ensemble_scheduling.step
    )
    if given or len(model.message.input) < 2:
        return ()
    return (drop(model, "input", f"name={name}", text="no such input"),)


def shaped(repository: Repository, first: End, end: End, alone: bool) -> tuple[Remedy, ...]:
    """The shape of one for the other, either way where nobody else has the tensor; a reshaped one is for a person."""
    if first.row.HasField("reshape") or end.row.HasField("reshape"):
        return (person(f"dims: {text(list(first.dims))} in {end.owner}"),)
    return (
        owned(repository, end, "dims", text(list(first.dims))),
        *((owned(repository, first, "dims", text(list(end.dims))),) if alone else ()),
    )


def other_output(model: Model, repository: Repository, tensor: str, near: str | None) -> tuple[Remedy, ...]:
    """Let a step write an output that nobody writes: the one whose tensor is spelt like it, and whom nobody reads."""
    graph = graph_of(model, repository)
    ways: list[Remedy] = []
    writers = graph.writers.get(near or "", [])
    if near is not None and len(writers) == 1 and writers[0][0] >= 0:
        index, name = writers[0]
        place = step_path(index, "output_map", f"key={name}", "value")
        if near not in graph.readers:
            ways.append(put(model, f'"{tensor}"', *place, text=f'output_map {{ key: "{name}" value: "{tensor}" }}'))
        ways.append(put(model, f'"{near}"', "output", f"name={tensor}", "name", text=f"the output is called {near!r}"))
    return tuple(ways) or (person(f'output_map {{ … value: "{tensor}" }}'),)
