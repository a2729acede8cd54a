"""Rules on one model's configuration: backend, tensors, instances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_repo.lint.hits import TRITON_CONFIG, TRITON_CORE, Hit, each_model, hit, hit_file, rule
from triton_repo.lint.remedies import drop, here, out, person, put, removed, together
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.shapes import reshapes, text
from trtforge.ground.names import nearest
from trtforge.rules.sources import RAGGED_BATCHING, thread
from trtforge.rules.tables import Section

SECTION = Section(20, "One model's configuration")

#: backends that never complete a configuration's tensors themselves
_NO_COMPLETION = frozenset({"tensorrtllm", "pytorch"})


@rule("TF-TRI-024", "error", "a tensor is declared wrongly", TRITON_CONFIG)
@each_model
def tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    """Every tensor has a name of its own, a data type and at least one dim of -1 or more than 0."""
    for kind, rows in (("input", model.message.input), ("output", model.message.output)):
        if not rows and not model.knows(kind):
            continue
        if not rows and _tensors_needed(model):
            # the Python backend serves a model that only takes or only gives
            mild = model.backend == "python" and bool(model.message.input or model.message.output)
            yield hit(
                model, f"the model has no {kind}", person(f"add its {kind}s"), kind, severity="note" if mild else None
            )
        seen: dict[str, Any] = {}
        for index, row in enumerate(rows):
            if row.name in seen:
                same = seen[row.name] == row
                yield hit(
                    model,
                    f"{kind} {row.name!r} is declared twice" + ("" if same else " and the two differ"),
                    drop(model, kind, index, text="leave the second out")
                    if same
                    else person(f"keep one {kind} {row.name!r}"),
                    kind,
                    index,
                    "name",
                    # NVIDIA's own ensemble of tensorrtllm_backend 0.19 has such a pair, and it is served
                    severity="note" if same and kind == "output" else None,
                )
            seen.setdefault(row.name, row)
            yield from _tensor(model, kind, index, row)


def _tensor(model: Model, kind: str, index: int, row: Any) -> Iterator[Hit]:
    if not row.name:
        yield hit(model, f"an {kind} has no name", person('name: "…"'), kind, index)
    if row.data_type == 0 and model.knows(kind, "data_type") and _stated(model, kind, index, "data_type"):
        remedy = person("data_type: the type that the model has")
        yield hit(model, f"{kind} {row.name!r} has no data type", remedy, kind, index)
    if not model.knows(kind, "dims") or not _stated(model, kind, index, "dims"):
        return
    if any(dim == 0 or dim < -1 for dim in row.dims) or not row.dims:
        open_ = text([-1 if dim < 1 else dim for dim in row.dims] or [-1])
        remedy = put(model, open_, kind, index, "dims", text=f"dims: {open_}, or the size that it has")
        yield hit(model, f"{kind} {row.name!r} has dims {text(row.dims)}", remedy, kind, index, "dims")
    elif row.HasField("reshape"):
        shape = list(row.reshape.shape)
        if not shape and model.message.max_batch_size == 0 and model.knows("max_batch_size"):
            message = f"{kind} {row.name!r} is reshaped to nothing in a model without batching"
            remedies = [drop(model, kind, index, "reshape", text="no reshape"), person("max_batch_size of at least 1")]
            yield hit(model, message, remedies, kind, index, "reshape")
        elif not reshapes(list(row.dims), shape):
            message = f"{kind} {row.name!r}: {text(row.dims)} cannot be reshaped to {text(shape)}"
            remedies = [person("a shape with as many elements"), out("no reshape")]
            yield hit(model, message, remedies, kind, index, "reshape")


def _tensors_needed(model: Model) -> bool:
    """Whether nothing completes the tensors of this model, so that the file must hold all of them."""
    if model.is_ensemble or model.backend in _NO_COMPLETION:
        return True
    if model.backend == "python":
        return model.code is not None and "auto_complete_config" not in model.code
    return False


def _stated(model: Model, kind: str, index: int, field: str) -> bool:
    """Whether the file states the field, or must."""
    return model.states(kind, index, field) or _tensors_needed(model)


@rule("TF-TRI-130", "error", "the batch size is negative", TRITON_CONFIG)
@each_model
def negative_batch(model: Model, repository: Repository) -> Iterator[Hit]:
    """max_batch_size is 0 (no batching) or the largest batch."""
    if model.message.max_batch_size < 0:
        yield hit(model, f"max_batch_size is {model.message.max_batch_size}", here("0"), "max_batch_size")


@rule("TF-TRI-026", "warning", "an instance group has no instance", TRITON_CONFIG)
@each_model
def instance_count(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton starts one instance in place of a count below 1."""
    for index, group in enumerate(model.message.instance_group):
        stated = model.states("instance_group", index, "count") and model.knows("instance_group", "count")
        if group.count < 1 and stated:
            message = f"an instance group has count {group.count}: Triton starts 1"
            yield hit(model, message, here("1"), "instance_group", index, "count")


@rule("TF-TRI-138", "error", "an instance group names GPUs and is not on a GPU", TRITON_CORE)
@each_model
def gpus_without_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton refuses gpus in a group of KIND_CPU or KIND_MODEL."""
    for index, group in enumerate(model.message.instance_group):
        kind = group.Kind.Name(group.kind)
        if group.gpus and kind in ("KIND_CPU", "KIND_MODEL"):
            remedies = [put(model, "KIND_GPU", "instance_group", index, "kind"), out("no gpus")]
            yield hit(model, f"{kind} with gpus {list(group.gpus)}", remedies, "instance_group", index, "gpus")


@rule("TF-TRI-139", "error", "an instance group's GPUs cannot be", TRITON_CONFIG)
@each_model
def gpu_ids(model: Model, repository: Repository) -> Iterator[Hit]:
    """GPU ids count from 0; one that is named twice gets its instances twice, without a word."""
    for index, group in enumerate(model.message.instance_group):
        gpus = list(group.gpus)
        if any(gpu < 0 for gpu in gpus):
            remedy = here(str(sorted({gpu for gpu in gpus if gpu >= 0}) or [0]))
            yield hit(model, f"gpus {gpus} has a negative id", remedy, "instance_group", index, "gpus")
        elif len(set(gpus)) != len(gpus):
            message = f"gpus {gpus} names a GPU twice"
            remedies = [
                here(str(sorted(set(gpus)))),
                together(
                    here(str(sorted(set(gpus)))),
                    put(model, str(2 * max(group.count, 1)), "instance_group", index, "count"),
                ),
            ]
            yield hit(model, message, remedies, "instance_group", index, "gpus", severity="warning")


@rule("TF-TRI-136", "error", "a response cache on a model that cannot have one", TRITON_CORE)
@each_model
def response_cache(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton refuses the response cache with decoupled responses and with sequence batching."""
    message = model.message
    if not message.response_cache.enable:
        return
    if message.model_transaction_policy.decoupled:
        yield hit(model, "response_cache and decoupled", out("no response_cache"), "response_cache")
    if message.HasField("sequence_batching"):
        yield hit(model, "response_cache and sequence_batching", out("no response_cache"), "response_cache")


@rule("TF-TRI-147", "error", "a ragged batch names tensors that are not there", RAGGED_BATCHING)
@each_model
def batch_tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    """batch_input and batch_output are computed from the declared tensors."""
    inputs = {row.name for row in model.message.input}
    outputs = {row.name for row in model.message.output}
    written: set[str] = set()
    for field, rows in (("batch_input", model.message.batch_input), ("batch_output", model.message.batch_output)):
        for index, row in enumerate(rows):
            place = (field, index, "source_input")
            if len(row.source_input) != 1:
                remedy = person('source_input: "…", one')
                yield hit(model, f"{field} reads {len(row.source_input)} inputs", remedy, *place)
            for name in row.source_input:
                if name not in inputs:
                    near = nearest(name, inputs)
                    remedy = here(f'"{near}"') if near else person("an input's name")
                    yield hit(model, f"{field} reads {name!r}, which is no input", remedy, *place)
            for name in row.target_name if field == "batch_output" else ():
                place = (field, index, "target_name")
                if name not in outputs:
                    near = nearest(name, outputs)
                    remedy = here(f'"{near}"') if near else person("an output's name")
                    yield hit(model, f"{field} writes {name!r}, which is no output", remedy, *place)
                elif name in written:
                    yield hit(model, f"{field} writes {name!r} a second time", person("each output once"), *place)
                written.add(name)


@rule("TF-TRI-148", "warning", "ragged input without batching", RAGGED_BATCHING)
@each_model
def ragged(model: Model, repository: Repository) -> Iterator[Hit]:
    """Only a batch can be ragged; without batching the flag means nothing."""
    if model.message.max_batch_size == 0 and model.knows("max_batch_size") and not model.is_ensemble:
        for index, row in enumerate(model.message.input):
            if row.allow_ragged_batch:
                message = f"input {row.name!r} may be ragged, and max_batch_size is 0"
                remedies = [
                    together(
                        *(
                            drop(model, "input", i, "allow_ragged_batch")
                            for i, other in enumerate(model.message.input)
                            if other.allow_ragged_batch
                        ),
                        text="leave allow_ragged_batch out",
                    ),
                    person("max_batch_size of at least 1"),
                ]
                yield hit(model, message, remedies, "input", index, "allow_ragged_batch")
                return


@rule("TF-TRI-151", "warning", "a file that the configuration names is missing", TRITON_CONFIG)
@each_model
def label_files(model: Model, repository: Repository) -> Iterator[Hit]:
    """Labels are read from the model's folder when the model is loaded."""
    for index, row in enumerate(model.message.output):
        name = row.label_filename
        if name and not HOLE.search(name) and not model.has(name):
            message = f"the labels {name!r} of output {row.name!r} are not there"
            remedies = [out(), person(f"put {name} into {model.name}/")]
            yield hit(model, message, remedies, "output", index, "label_filename")


@rule("TF-TRI-154", "warning", "a parameter is set twice", TRITON_CONFIG)
@each_model
def entries_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    """The second entry of a map replaces the first without a word; an edit of the first has no effect."""
    assert model.config is not None
    for field in ("parameters", "metric_tags", "cc_model_filenames"):
        first: dict[str, int] = {}
        for index, entry in enumerate(model.config.text.root.all(field)):
            key = entry.first("key")
            if key is None:
                continue
            line = model.config.text.position(key.value_start)[0]
            if key.string() in first:
                yield hit(
                    model,
                    f"{key.string()} is set a second time (first in line {first[key.string()]}); the last one holds",
                    drop(model, field, index, text="keep the first")
                    if _same(model, field, index)
                    else person("keep one of the two"),
                    *(field, index, "key"),
                )
            first.setdefault(key.string(), line)


def _same(model: Model, field: str, index: int) -> bool:
    """Whether an entry of a map says what an earlier one of its key says."""
    assert model.config is not None
    entries = model.config.text.root.all(field)
    key = entries[index].first("key")
    others = [
        e for e in entries[:index] if (k := e.first("key")) is not None and key is not None and k.text == key.text
    ]
    whole = model.config.text.text
    return any(
        whole[e.start : e.end].split() == whole[entries[index].start : entries[index].end].split() for e in others
    )


@rule("TF-TRI-110", "note", "the folder holds files that Triton ignores", thread("TS#6813"))
def leftovers(repository: Repository) -> Iterator[Hit]:
    """Editors' copies beside config.pbtxt are a sign of an edit that was not saved where it counts."""
    for model, _ in repository.configured():
        for name in ("config.pbtxt.bak", "config.pbtxt.orig", "config.pbtxt~", "config.pbtxt.rej", "config.pbtxt.swp"):
            if model.has(name):
                yield hit_file(model, model.folder / name, f"{name} is ignored", removed(model.folder / name))
