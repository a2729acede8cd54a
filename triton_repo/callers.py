"""Which models of a repository ask another one, told by their ensembles' steps, their parameters and their code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from triton_repo.lint.repository import Model, Repository


@dataclass(frozen=True)
class Call:
    """One model that asks another.

    Attributes:
        where: the step, the parameter or ``model.py`` with its line.
        tensors: the asked model's tensors that the caller names.
    """

    caller: Model
    where: str
    tensors: tuple[str, ...]


def calls(repository: Repository, asked: Model) -> Iterator[Call]:
    """Every other model that asks ``asked``; one call a model, the first place that says so."""
    for model in repository.models.values():
        if model is not asked and model.readable:
            call = _call(model, asked)
            if call is not None:
                yield call


def _call(model: Model, asked: Model) -> Call | None:
    names = [row.name for row in (*asked.message.input, *asked.message.output)]
    if model.is_ensemble:
        for index, step in enumerate(model.message.ensemble_scheduling.step):
            if step.model_name == asked.name:
                used = {*step.input_map, *step.output_map}
                return Call(model, f"step {index + 1}", tuple(name for name in names if name in used))
        return None
    code = model.code or ""
    used_in_code = tuple(name for name in names if _quoted(name, code) is not None)
    place = _quoted(asked.name, code)
    if place is not None:
        return Call(model, f"model.py:{code.count(chr(10), 0, place) + 1}", used_in_code)
    for name in model.message.parameters:
        if model.parameter(name) == asked.name:
            return Call(model, f"parameter {name}", used_in_code)
    return None


def _quoted(name: str, code: str) -> int | None:
    """Where a name first stands in quotes."""
    found = re.search(rf"""["']{re.escape(name)}["']""", code)
    return found.start() if found is not None else None
