"""The tensors of an ensemble: who declares each, who writes it and who reads it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from triton_repo.lint.hits import Hit, each_model
from triton_repo.lint.repository import Model, Repository


@dataclass(frozen=True)
class End:
    """One end of an ensemble tensor: who declares it, as what, and where in the ensemble's file."""

    owner: str
    row: Any
    dims: tuple[int, ...]
    batching: bool
    place: tuple[str | int, ...]


def each_ensemble(check: Callable[[Model, Repository], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every ensemble with steps."""

    def ensembles(model: Model, repository: Repository) -> Iterable[Hit]:
        if model.is_ensemble:
            yield from check(model, repository)

    return each_model(functools.wraps(check)(ensembles))


def step_path(index: int, *more: str | int) -> tuple[str | int, ...]:
    return ("ensemble_scheduling", "step", index, *more)


def judged(repository: Repository, name: str) -> Model | None:
    """The step's model when its tensors are declared and readable."""
    model = repository.get(name)
    if model is None or not model.readable or not (model.knows("input") and model.knows("output")):
        return None
    if not model.message.input or not model.message.output:
        return None  # left to auto-complete
    return model


#: statements of an ensemble without which nobody can say who reads or writes a tensor
_NAMING = ("input", "output", "input.name", "output.name", "ensemble_scheduling", "ensemble_scheduling.step")
_MAPS = ("ensemble_scheduling.step.input_map", "ensemble_scheduling.step.output_map")


def all_named(model: Model) -> bool:
    """Whether every statement that names a tensor of the ensemble could be read."""
    unknown = model.config.unknown if model.config is not None else set()
    return not any(path in _NAMING or path.startswith(_MAPS) for path in unknown)


@dataclass
class Graph:
    """The tensors of an ensemble: who writes each, who reads each, and every declaration of it."""

    writers: dict[str, list[tuple[int, str]]]
    readers: dict[str, list[tuple[int, str]]]
    ends: dict[str, list[End]]


def graph_of(model: Model, repository: Repository) -> Graph:
    message = model.message
    batching = message.max_batch_size > 0
    graph = Graph({}, {}, {})
    for index, row in enumerate(message.input):
        dims = row.reshape.shape if row.HasField("reshape") else row.dims
        graph.writers.setdefault(row.name, []).append((-1, row.name))
        graph.ends.setdefault(row.name, []).append(End(model.name, row, tuple(dims), batching, ("input", index)))
    for index, row in enumerate(message.output):
        dims = row.reshape.shape if row.HasField("reshape") else row.dims
        graph.readers.setdefault(row.name, []).append((-1, row.name))
        graph.ends.setdefault(row.name, []).append(End(model.name, row, tuple(dims), batching, ("output", index)))
    for index, step in enumerate(message.ensemble_scheduling.step):
        used = judged(repository, step.model_name)
        for field, side in (("input", graph.readers), ("output", graph.writers)):
            rows = {row.name: row for row in getattr(used.message, field)} if used is not None else {}
            for key in sorted(getattr(step, f"{field}_map")):
                tensor = getattr(step, f"{field}_map")[key]
                side.setdefault(tensor, []).append((index, key))
                if used is not None and key in rows and used.knows(field, "dims") and used.knows(field, "data_type"):
                    graph.ends.setdefault(tensor, []).append(
                        End(
                            used.name,
                            rows[key],
                            tuple(rows[key].dims),
                            used.message.max_batch_size > 0,
                            step_path(index, f"{field}_map", f"key={key}", "value"),
                        )
                    )
    return graph


def running_order(model: Model) -> tuple[list[int], dict[int, set[str]]]:
    """Steps in an order in which they can run, and for each that never can the tensors that it waits for.

    A tensor that nobody writes holds nothing up here: that is a finding of its own.
    """
    steps = model.message.ensemble_scheduling.step
    ready = {row.name for row in model.message.input}
    written = {tensor for step in steps for tensor in step.output_map.values()}
    awaited = written - ready
    waiting = {i: {t for t in step.input_map.values() if t in awaited} for i, step in enumerate(steps)}
    readers: dict[str, list[int]] = {}
    for index, tensors in waiting.items():
        for tensor in tensors:
            readers.setdefault(tensor, []).append(index)
    todo = deque(index for index, tensors in waiting.items() if not tensors)
    order: list[int] = []
    while todo:
        index = todo.popleft()
        order.append(index)
        waiting.pop(index)
        for tensor in steps[index].output_map.values():
            for reader in readers.pop(tensor, ()):
                waiting[reader].discard(tensor)
                if not waiting[reader]:
                    todo.append(reader)
    return order, waiting
