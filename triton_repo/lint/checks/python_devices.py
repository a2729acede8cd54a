"""Rules on Python models that spread themselves over GPUs: one instance each, not one a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from triton_repo.lint.hits import Hit, each_model, hit, rule
from triton_repo.lint.remedies import Remedy, person, put
from triton_repo.lint.repository import Model, Repository
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(170, "Models in Python: GPUs")

#: values of transformers' device_map that place a model over all GPUs that it sees
_MAPS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
#: arguments that ask for several GPUs by number
_SIZES = frozenset({"tensor_parallel_size", "pipeline_parallel_size", "tp_size", "mp_size"})


@rule("TF-TRI-256", "note", "a Python model that spreads over the GPUs is started once a GPU", thread("TS#7169"))
@each_model
def spread(model: Model, repository: Repository) -> Iterator[Hit]:
    """Where nothing is said, and with KIND_GPU, Triton starts one instance a visible GPU, and each of them loads the
    model over all GPUs: as many copies as GPUs, and memory runs out. KIND_MODEL leaves the GPUs to the model."""
    if model.backend != "python" or not model.knows("instance_group") or not isinstance(model.syntax, ast.Module):
        return
    found = next(_spreading(model.syntax), None)
    if found is None:
        return
    groups = list(model.message.instance_group)
    kinds = [group.Kind.Name(group.kind) for group in groups]
    once_a_gpu = not groups or any(
        kind in ("KIND_GPU", "KIND_AUTO") and len(group.gpus) != 1 for kind, group in zip(kinds, groups, strict=True)
    )
    count = sum(max(group.count, 1) * max(len(group.gpus), 1) for group in groups)
    if not once_a_gpu and count <= 1:
        return
    text, line = found
    how = "one instance a GPU" if once_a_gpu else f"{count} instances"
    where = f"model.py:{line} says {text}"
    yield hit(model, f"{where}: {how}, each over all GPUs", _one(model), "instance_group" if groups else "name")


def _one(model: Model) -> Remedy:
    """One instance that Triton gives no GPU to."""
    groups = model.message.instance_group
    text = "instance_group [ { count: 1 kind: KIND_MODEL } ]"
    if len(groups) > 1:
        return person(f"{text}, and no other group")
    return put(
        model,
        "[ { count: 1 kind: KIND_MODEL } ]" if groups else "{ count: 1 kind: KIND_MODEL }",
        "instance_group",
        text=text,
    )


def _spreading(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(what is said, line) of every place where the code spreads a model over GPUs."""
    for node in ast.walk(tree):
        pairs: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "DataParallel":
                yield "DataParallel", node.lineno
        elif isinstance(node, ast.Dict):
            pairs = [
                (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None, value)
                for key, value in zip(node.keys, node.values, strict=True)
            ]
        for name_, value in pairs:
            given = value.value if isinstance(value, ast.Constant) else None
            if name_ == "device_map" and given in _MAPS:
                yield f'device_map="{given}"', value.lineno
            elif name_ in _SIZES and type(given) is int and given > 1:
                yield f"{name_}={given}", value.lineno
