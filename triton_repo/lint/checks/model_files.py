"""Rules on a model's file: what it holds against what the configuration says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from triton_repo.lint.checks.files import loaded
from triton_repo.lint.files import Unreadable, inside
from triton_repo.lint.hits import Hit, each_model, hit, hit_file, listed, rule
from triton_repo.lint.onnx_graph import Graph, GraphTensor, read_graph
from triton_repo.lint.remedies import Remedy, here, person, put, together
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.shapes import full, text
from trtforge.ground.names import nearest
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(140, "The model's file")

_POINTER = b"version https://git-lfs.github.com/spec/"
#: files of weights and graphs by the ends of their names
_HEAVY = (".onnx", ".plan", ".pt", ".pt2", ".bin", ".savedmodel", ".graphdef", ".engine", ".safetensors", ".data")


@rule(
    "TF-TRI-155",
    "error",
    "a file of the model is a Git LFS pointer",
    "https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md",
)
@each_model
def pointers(model: Model, repository: Repository) -> Iterator[Hit]:
    """The repository was cloned without its large files: a text of three lines stands where the weights belong."""
    for version in loaded(model):
        for name in sorted(version.names or ()):
            path = version.folder / name
            if name.endswith(_HEAVY) and _begins(path, repository) == _POINTER:
                yield hit_file(model, path, f"{name} is a Git LFS pointer", person("git lfs pull"))


def _begins(path: Any, repository: Repository) -> bytes:
    """The first bytes of a small regular file inside the repository."""
    try:
        real = inside(path, repository.root)
        if not real.is_file() or real.stat().st_size > 1024:
            return b""
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(handle, len(_POINTER))
        finally:
            os.close(handle)
    except (OSError, Unreadable):
        return b""


@rule("TF-TRI-156", "error", "the configuration's tensors are not those of the ONNX model", thread("TS#1338"))
@each_model
def onnx_tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    """Names, types and fixed sizes are compared when the model is loaded; with batching the model's first axis is the
    batch, which dims leave out and which must be open."""
    message = model.message
    graph = _graph(model, repository)
    if graph is None or not (model.knows("input") and model.knows("output") and model.knows("max_batch_size")):
        return
    if not (message.input and message.output):
        yield from _completed(model, graph)
        return
    yield from _side(model, "input", message.input, graph)
    yield from _side(model, "output", message.output, graph)
    yield from _count(model, graph)


def _graph(model: Model, repository: Repository) -> Graph | None:
    """The graph of the newest version's ONNX file, when the model runs one and it can be read."""
    if model.backend != "onnxruntime":
        return None
    name = model.message.default_model_filename or "model.onnx"
    versions = [version for version in loaded(model) if version.names is not None and name in version.names]
    return read_graph(versions[-1].folder / name, repository.root) if versions else None


@rule(
    "TF-TRI-257",
    "error",
    "an input or output of the ONNX model is no tensor",
    "https://github.com/triton-inference-server/onnxruntime_backend",
)
def not_tensors(repository: Repository) -> Iterator[Hit]:
    """Triton hands tensors over and refuses a model with sequences or maps among its inputs and outputs, as converters
    of scikit-learn's classifiers write them for probabilities."""
    for model in repository.models.values():
        graph = _graph(model, repository)
        for side, rows in (("input", graph.inputs), ("output", graph.outputs)) if graph is not None else ():
            for row in rows.values():
                if row.kind not in ("tensor", "optional"):
                    remedy = person('convert it again with tensors only (skl2onnx: options={"zipmap": False})')
                    yield hit(model, f"{side} {row.name!r} of the model is a {row.kind}", remedy, side)


@rule("TF-TRI-258", "note", "the configuration fixes a size that the ONNX model leaves open", thread("TS#1338"))
@each_model
def open_outputs(model: Model, repository: Repository) -> Iterator[Hit]:
    """An open size of an output is known only when the model has run: the server loads the model, tells clients and
    ensembles the size in the file, and gives them what came out."""
    graph = _graph(model, repository)
    if graph is None or not (model.knows("output", "dims") and model.knows("max_batch_size")):
        return
    batching = model.message.max_batch_size > 0
    for index, row in enumerate(model.message.output):
        found = graph.outputs.get(row.name)
        if found is None or row.HasField("reshape"):
            continue
        if found.dims is None:
            if found.kind == "tensor" and any(dim > 0 for dim in row.dims):
                message = (
                    f"output {row.name!r} is {text(row.dims)} here, and the model does not say how many axes it has"
                )
                yield hit(model, message, person("a model exported with the output's shape"), "output", index, "dims")
            continue
        shape = full(row.dims, batching)
        if len(shape) != len(found.dims):
            continue  # that is a finding of its own
        fixed = [i for i, (a, b) in enumerate(zip(found.dims, shape, strict=True)) if a == -1 and b > 0]
        if fixed:
            open_ = [-1 if i in fixed else dim for i, dim in enumerate(shape)][1 if batching else 0 :]
            message = f"output {row.name!r} is {text(row.dims)} here, and the model leaves it open: {text(found.dims)}"
            yield hit(model, message, put(model, text(open_), "output", index, "dims"), "output", index, "dims")


def _completed(model: Model, graph: Graph) -> Iterator[Hit]:
    """Tensors that auto-complete takes from the model: each one must have a batch where the configuration has one."""
    rows = [row for row in (*graph.inputs.values(), *graph.outputs.values()) if row.dims and row.dims[0] != -1]
    if model.message.max_batch_size > 0 and rows:
        message = (
            f"max_batch_size {model.message.max_batch_size}, and the model's {rows[0].name!r} has the shape "
            f"{text(rows[0].dims or ())}: its first axis is no batch"
        )
        yield hit(model, message, here("0"), "max_batch_size")


def _side(model: Model, side: str, rows: Any, graph: Graph) -> Iterator[Hit]:
    there = graph.inputs if side == "input" else graph.outputs
    more = graph.defaults if side == "input" else frozenset()
    for index, row in enumerate(rows):
        found = there.get(row.name)
        if found is None and row.name and row.name not in more:
            allowed = {*there, *more}
            near = nearest(row.name, allowed) or (min(allowed) if len(allowed) == 1 else None)
            message = f"the model has no {side} {row.name!r} (it has {listed(allowed)})"
            remedy = here(f'"{near}"') if near else person(f"one of {listed(allowed)}")
            yield hit(model, message, remedy, side, index, "name")
        if found is not None:
            yield from _tensor(model, side, index, row, found, graph)


def _tensor(model: Model, side: str, index: int, row: Any, found: GraphTensor, graph: Graph) -> Iterator[Hit]:
    stated = type(row).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[row.data_type].name
    if found.dtype and stated != found.dtype and row.data_type and model.knows(side, "data_type"):
        message = f"{side} {row.name!r} is {stated} here and {found.dtype} in the model"
        yield hit(model, message, here(found.dtype), side, index, "data_type")
    if not found.dims or not model.knows(side, "dims") or not model.knows(side, "reshape", "shape"):
        return  # a scalar, or a tensor of any rank
    reshaped, ragged = row.HasField("reshape"), side == "input" and row.allow_ragged_batch
    computed = side == "output" and any(row.name in batch.target_name for batch in model.message.batch_output)
    if ragged or computed:
        return
    batching = model.message.max_batch_size > 0
    where = (side, index, "dims")
    if batching and found.dims[0] != -1:
        message = (
            f"{side} {row.name!r} has the shape {text(found.dims)} in the model: {found.dims[0]} is no axis of a batch"
        )
        yield hit(model, message, _unbatched(model, graph), *where)
        return
    shape = full(row.reshape.shape if reshaped else row.dims, batching)
    # an open size of the model may still be fixed when the runtime infers the shapes: only fixed ones are judged
    if len(shape) != len(found.dims) or any(a not in (-1, b) for a, b in zip(found.dims, shape, strict=True)):
        dims = found.dims[1:] if batching else found.dims
        batch = ", the batch included" if batching else ""
        message = f"{side} {row.name!r} has the shape {text(shape)}{batch}, and {text(found.dims)} in the model"
        yield hit(model, message, _sized(model, side, index, reshaped, dims), *where)


def _unbatched(model: Model, graph: Graph) -> Remedy:
    """No batching in Triton, and the whole shapes of the model."""
    changes = [put(model, "0", "max_batch_size")]
    for side, rows in (("input", graph.inputs), ("output", graph.outputs)):
        for index, row in enumerate(getattr(model.message, side)):
            found = rows.get(row.name)
            if found is not None and found.dims:
                changes.append(put(model, text(found.dims), side, index, "dims"))
    return together(*changes, text="max_batch_size: 0 and the model's whole shapes")


def _sized(model: Model, side: str, index: int, reshaped: bool, dims: tuple[int, ...]) -> Remedy:
    """The model's shape without its batch; one value a row where nothing else is left."""
    if not dims:
        return put(model, "[ 1 ]", side, index, "dims") if not reshaped else person("dims: [ 1 ]")
    if reshaped:
        return put(model, f"{{ shape: {text(dims)} }}", side, index, "reshape")
    return put(model, text(dims), side, index, "dims")


def _count(model: Model, graph: Graph) -> Iterator[Hit]:
    """The inputs that nothing gives; controls and states of sequences are inputs too."""
    message = model.message
    given = {row.name for row in message.input} | {name for row in message.batch_input for name in row.target_name}
    sequence = message.sequence_batching
    given |= {row.name for row in sequence.control_input} | {row.input_name for row in sequence.state}
    if not model.knows("sequence_batching") or not model.knows("batch_input"):
        return
    # a wrong name has its finding: only inputs beyond the count are missing
    missing = sorted(set(graph.inputs) - given)
    if missing and len(given) < len(graph.inputs):
        row = graph.inputs[missing[0]]
        dims = text(row.dims[1:] if row.dims and message.max_batch_size > 0 else row.dims or (1,))
        yield hit(
            model,
            f"the model has {len(graph.inputs)} inputs and {len(given)} are given; missing: {listed(missing)}",
            put(
                model,
                f'{{ name: "{row.name}" data_type: {row.dtype} dims: {dims} }}',
                "input",
                f"name={row.name}",
                text=f'input {{ name: "{row.name}" data_type: {row.dtype} dims: {dims} }}'
                + (", and the others" if len(missing) > 1 else ""),
            )
            if row.dtype
            else person(f"an input {row.name!r}"),
            "input",
        )
