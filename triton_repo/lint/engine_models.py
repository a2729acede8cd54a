"""Checks of models that run an engine, and where a parameter stands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from triton_repo.lint.hits import Hit, each_model, hit, listed
from triton_repo.lint.remedies import Remedy, parameter, person, put
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.roles import device_sets, is_engine_model


def each_engine_model(check: Callable[[Model, Repository], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every model that runs an engine."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        if is_engine_model(model):
            yield from check(model, repository)

    return each_model(functools.wraps(check)(checked))


def at(model: Model, name: str) -> tuple[str | int, ...]:
    """Where a parameter's value stands."""
    path: tuple[str | int, ...] = ("parameters", f"key={name}", "value", "string_value")
    return path if model.states(*path) else path[:2]


def device_faults(model: Model, ranks: int | None) -> Iterator[Hit]:
    """Faults of ``gpu_device_ids`` against the instance count and, when known, the ranks of one instance."""
    text = model.parameter("gpu_device_ids")
    count = sum(max(group.count, 1) for group in model.message.instance_group) or 1
    if text is None:
        if count > 1 and model.knows("instance_group", "count"):
            message = f"{count} instances without gpu_device_ids: all take the same GPUs"
            remedy = parameter(model, "gpu_device_ids", ";".join(_fitting(i, ranks or 1) for i in range(count)))
            yield hit(model, message, remedy, "instance_group", severity="warning")
        return
    sets = device_sets(text)
    if sets is None:
        return  # its form is a finding of its own
    if len(sets) != count and model.knows("instance_group", "count"):
        yield hit(
            model,
            f"{len(sets)} set{'s' if len(sets) > 1 else ''} of GPUs for {count} instance{'s' if count > 1 else ''}",
            (_instances(model, len(sets)), person(f"{count} sets parted by semicolons")),
            *at(model, "gpu_device_ids"),
        )
    used = [device for group in sets for device in group]
    twice = sorted({device for device in used if used.count(device) > 1})
    if any(len(set(group)) != len(group) for group in sets):
        remedy = _sets(model, [ranks or len(group) for group in sets], "each GPU once")
        yield hit(model, f"GPU {listed(map(str, twice))} twice in one set", remedy, *at(model, "gpu_device_ids"))
    elif twice:
        apart = _sets(model, [ranks or len(group) for group in sets], "sets without a common GPU")
        message = f"GPU {listed(map(str, twice))} is in two sets"
        remedies = [apart, person("a cache that leaves room for both")]
        yield hit(model, message, remedies, *at(model, "gpu_device_ids"), severity="warning")
    wrong = [group for group in sets if ranks is not None and len(group) != ranks]
    if ranks is not None and wrong:
        message = f"{len(wrong[0])} GPUs in a set for {ranks} rank{'s' if ranks > 1 else ''}"
        remedy = _sets(model, [ranks] * len(sets), f"{ranks} GPUs in every set")
        yield hit(model, message, remedy, *at(model, "gpu_device_ids"))


def _sets(model: Model, sizes: list[int], said: str) -> Remedy:
    """Sets of these sizes that have no GPU in common."""
    sets = ";".join(_fitting(index, size) for index, size in enumerate(sizes))
    return parameter(model, "gpu_device_ids", sets, text=f"{said}: {sets}")


def _fitting(index: int, size: int) -> str:
    """The GPUs of one set, each in no other."""
    return ",".join(str(index * size + k) for k in range(size))


def _instances(model: Model, count: int) -> Remedy:
    """As many instances as ``count``, in one group."""
    groups = len(model.message.instance_group)
    if groups > 1:
        return person(f"{count} instances in all")
    return put(model, str(count), "instance_group", 0, "count")
