"""Rules on schedulers: dynamic and sequence batching, queues, warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_repo.lint.hits import TRITON_BATCHER, TRITON_CONFIG, TRITON_CORE, Hit, each_model, hit, rule
from triton_repo.lint.remedies import Edit, Remedy, drop, here, out, person, put
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.shapes import agree, text
from trtforge.ground.names import nearest
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(40, "Schedulers and warm-up")

_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


@rule("TF-TRI-131", "error", "a preferred batch size is outside the model's batches", TRITON_CORE)
@each_model
def preferred_sizes(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton refuses preferred sizes below 1 or above max_batch_size."""
    maximum = model.message.max_batch_size
    if not model.knows("max_batch_size"):
        return
    for path, sizes in (
        (("dynamic_batching",), model.message.dynamic_batching.preferred_batch_size),
        (("sequence_batching", "oldest"), model.message.sequence_batching.oldest.preferred_batch_size),
    ):
        wrong = [size for size in sizes if size < 1 or size > maximum]
        if wrong:
            fit = sorted({size for size in sizes if 1 <= size <= maximum} or ({maximum} if maximum > 0 else set()))
            message = f"preferred_batch_size {wrong} with max_batch_size {maximum}"
            remedy = here(str(fit)) if fit else out("no preferred_batch_size")
            yield hit(model, message, remedy, *path, "preferred_batch_size")


@rule("TF-TRI-132", "warning", "dynamic batching of a model that does not batch", TRITON_BATCHER)
@each_model
def dynamic_without_batch(model: Model, repository: Repository) -> Iterator[Hit]:
    """With max_batch_size 0 there is nothing to batch; requests go one by one."""
    message = model.message
    if message.HasField("dynamic_batching") and message.max_batch_size == 0 and model.knows("max_batch_size"):
        if not model.states("max_batch_size"):
            return  # auto-complete may set it
        remedies = (
            out("no dynamic_batching"),
            person("max_batch_size: 8, for a model whose tensors have a batch axis"),
        )
        yield hit(model, "dynamic_batching with max_batch_size 0", remedies, "dynamic_batching")


@rule("TF-TRI-134", "error", "a sequence control is declared wrongly", TRITON_CORE)
@each_model
def sequence_controls(model: Model, repository: Repository) -> Iterator[Hit]:
    """Each control has a tensor of its own, once, with exactly the two values of false and true; a correlation id has a
    type instead."""
    names: set[str] = set()
    kinds: set[int] = set()
    for index, row in enumerate(model.message.sequence_batching.control_input):
        place = ("sequence_batching", "control_input", index)
        if not row.name:
            yield hit(model, "a sequence control has no name", person('name: "START"'), *place)
        if row.name in names:
            yield hit(model, f"sequence control {row.name!r} is declared twice", person("one tensor a control"), *place)
        names.add(row.name)
        for control in row.control:
            kind = control.Kind.Name(control.kind)
            if control.kind in kinds:
                yield hit(model, f"{kind} has two tensors", person("one tensor a control"), *place, "control")
            kinds.add(control.kind)
            yield from _control(model, row.name, control, kind, place)


def _control(model: Model, name: str, control: Any, kind: str, place: tuple[str | int, ...]) -> Iterator[Hit]:
    pairs = [
        list(values)
        for values in (control.int32_false_true, control.fp32_false_true, control.bool_false_true)
        if len(values)
    ]
    if kind == "CONTROL_SEQUENCE_CORRID":
        from tritonclient.grpc import model_config_pb2 as pb

        given = pb.DataType.Name(control.data_type)
        if given not in _CORRELATION:
            yield hit(
                model, f"the correlation id {name!r} is {given}", here("TYPE_UINT64"), *place, "control", "data_type"
            )
        return
    if len(pairs) != 1 or len(pairs[0]) != 2:
        given = [field for field in _VALUES if len(getattr(control, field))] or ["int32_false_true"]
        edits = [
            Edit("put", None, (*place, "control", given[0]), "[ false, true ]" if "bool" in given[0] else "[ 0, 1 ]")
        ]
        edits += [Edit("drop", None, (*place, "control", field)) for field in given[1:]]
        remedy = Remedy(f"{given[0]}: {edits[0].value}", tuple(edits))
        yield hit(model, f"{kind} of {name!r} has values {pairs}", remedy, *place, "control")


@rule("TF-TRI-135", "error", "sequence batching is set beyond its range", TRITON_CORE)
@each_model
def sequence_ranges(model: Model, repository: Repository) -> Iterator[Hit]:
    """minimum_slot_utilization is a share of the slots, from 0 to 1."""
    direct = model.message.sequence_batching.direct
    if not 0.0 <= direct.minimum_slot_utilization <= 1.0:
        message = f"minimum_slot_utilization is {direct.minimum_slot_utilization:g}"
        yield hit(model, message, here("1.0"), "sequence_batching", "direct", "minimum_slot_utilization")


@rule(
    "TF-TRI-137",
    "error",
    "states of a sequence do not fit",
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/implicit_state_management.html",
)
@each_model
def states(model: Model, repository: Repository) -> Iterator[Hit]:
    """A state has the name that the model reads and the name that it writes, and each is declared once."""
    seen: set[str] = set()
    for index, state in enumerate(model.message.sequence_batching.state):
        place = ("sequence_batching", "state", index)
        for name in (state.input_name, state.output_name):
            if not name:
                yield hit(model, "a state has no input_name or no output_name", person('input_name: "…"'), *place)
        if state.input_name and state.input_name in seen:
            remedy = person("one state a tensor")
            yield hit(model, f"state {state.input_name!r} is declared twice", remedy, *place)
        seen.add(state.input_name)


@rule("TF-TRI-146", "error", "priorities or queue policies contradict each other", TRITON_CORE)
@each_model
def priorities(model: Model, repository: Repository) -> Iterator[Hit]:
    """The default level is one of the levels, and preserve_ordering allows one level and no DELAY."""
    batching = model.message.dynamic_batching
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield hit(
            model,
            f"default_priority_level {batching.default_priority_level} of {levels} levels",
            put(model, str((levels + 1) // 2), "dynamic_batching", "default_priority_level"),
            "dynamic_batching",
            "default_priority_level" if batching.default_priority_level else "priority_levels",
        )
    if levels:
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                message = f"a queue policy for level {level} of {levels}"
                remedy = person(f"a key from 1 to {levels}")
                yield hit(model, message, remedy, "dynamic_batching", "priority_queue_policy")
    if batching.preserve_ordering:
        if levels > 1:
            message = f"preserve_ordering with {levels} priority levels"
            yield hit(model, message, here("false"), "dynamic_batching", "preserve_ordering")
        policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
        if any(p.default_timeout_microseconds and p.TimeoutAction.Name(p.timeout_action) == "DELAY" for p in policies):
            message = "preserve_ordering with a timeout that delays"
            remedies = [person("timeout_action: REJECT"), here("false")]
            yield hit(model, message, remedies, "dynamic_batching", "preserve_ordering")


@rule("TF-TRI-143", "error", "a warm-up request does not fit the model", TRITON_CONFIG)
@each_model
def warmup(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton builds the request at load; one that does not fit fails the load."""
    declared = {row.name: row for row in model.message.input}
    if not declared or not model.knows("input", "data_type") or not model.knows("input", "dims"):
        return
    for index, sample in enumerate(model.message.model_warmup):
        place: tuple[str | int, ...] = ("model_warmup", index)
        maximum = model.message.max_batch_size
        if sample.batch_size > max(maximum, 1) and model.knows("max_batch_size"):
            message = f"warm-up {sample.name!r} has batch_size {sample.batch_size}, max_batch_size is {maximum}"
            yield hit(model, message, here(str(max(maximum, 1))), *place, "batch_size")
        for name in sorted(set(declared) - set(sample.inputs)):
            if not declared[name].optional:
                message = f"warm-up {sample.name!r} lacks the required input {name!r}"
                yield hit(model, message, _sent(place, name, declared[name]), *place)
        for name in sorted(sample.inputs):
            where = (*place, "inputs", f"key={name}")
            if name not in declared:
                near = nearest(name, declared)
                message = f"warm-up {sample.name!r} sends {name!r}, which is no input"
                remedy = (
                    Remedy(f'key: "{near}"', (Edit("put", None, (*where, "key"), f'"{near}"'),))
                    if near and near not in sample.inputs
                    else out()
                )
                yield hit(model, message, remedy, *where)
                continue
            yield from _warmup_tensor(model, sample.inputs[name], declared[name], where)


@rule("TF-TRI-152", "error", "warm-up of a model with correlation ids of text", thread("TS#8110"))
@each_model
def warmup_of_text_ids(model: Model, repository: Repository) -> Iterator[Hit]:
    """Warm-up requests have a number as correlation id; a control of TYPE_STRING refuses it and the model does not
    load."""
    from tritonclient.grpc import model_config_pb2 as pb

    if not model.message.model_warmup:
        return
    for index, control_input in enumerate(model.message.sequence_batching.control_input):
        for number, control in enumerate(control_input.control):
            if control.kind == control.CONTROL_SEQUENCE_CORRID and control.data_type == pb.TYPE_STRING:
                yield hit(
                    model,
                    f"{control_input.name!r} takes correlation ids of TYPE_STRING, and model_warmup sends numbers",
                    (here("TYPE_UINT64"), drop(model, "model_warmup", text="no model_warmup")),
                    *("sequence_batching", "control_input", index, "control", number, "data_type"),
                )


def _sent(place: tuple[str | int, ...], name: str, row: Any) -> Remedy:
    """The input in the warm-up request, zeros of the least size."""
    from tritonclient.grpc import model_config_pb2 as pb

    value = f"data_type: {pb.DataType.Name(row.data_type)} dims: {text([max(dim, 1) for dim in row.dims])}"
    entry = f'{{ key: "{name}" value {{ {value} zero_data: true }} }}'
    return Remedy(f'inputs {{ key: "{name}" … }}', (Edit("put", None, (*place, "inputs", f"key={name}"), entry),))


def _warmup_tensor(model: Model, given: Any, row: Any, where: tuple[str | int, ...]) -> Iterator[Hit]:
    from tritonclient.grpc import model_config_pb2 as pb

    if given.data_type != row.data_type:
        message = (
            f"warm-up input {row.name!r} is {pb.DataType.Name(given.data_type)} and the model's is "
            f"{pb.DataType.Name(row.data_type)}"
        )
        yield hit(model, message, here(pb.DataType.Name(row.data_type)), *where, "value", "data_type")
    if any(dim < 1 for dim in given.dims):
        message = f"warm-up input {row.name!r} has dims {text(given.dims)}: a request has a size"
        remedy = here(
            text([1 if dim < 1 else dim for dim in (row.dims if len(row.dims) == len(given.dims) else given.dims)])
        )
        yield hit(model, message, remedy, *where, "value", "dims")
    elif not agree(list(given.dims), list(row.dims)):
        message = f"warm-up input {row.name!r} has dims {text(given.dims)} and the model's has {text(row.dims)}"
        yield hit(model, message, here(text([1 if dim < 0 else dim for dim in row.dims])), *where, "value", "dims")
    name = given.input_data_file
    if name and "/" not in name and not model.has(f"warmup/{name}"):
        message = f"the warm-up file warmup/{name} is not there"
        remedy = Remedy(
            "zero_data: true",
            (
                Edit("drop", None, (*where, "value", "input_data_file")),
                Edit("put", None, (*where, "value", "zero_data"), "true"),
            ),
        )
        yield hit(model, message, remedy, *where, "value", "input_data_file")
