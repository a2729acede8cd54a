"""Rules on one model's configuration: backend, tensors, instances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_repo.lint.names import nearest
from triton_repo.lint.repository import HOLE, MODEL_FILES, Model, Repository
from triton_repo.lint.rules import (
    TRITON_CONFIG,
    TRITON_CORE,
    Hit,
    each_model,
    hit,
    hit_file,
    rule,
    thread,
)
from triton_repo.lint.shapes import reshapes, text

#: platforms that Triton knows, and the backend that goes with each
PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "libtorch": "pytorch",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
#: backends that never complete a configuration's tensors themselves
_NO_COMPLETION = frozenset({"tensorrtllm", "pytorch"})


@rule(
    "TF-TRI-024",
    "error",
    "a tensor is declared wrongly",
    why="Every tensor has a name of its own, a data type and at least one dim of -1 or more than 0.",
    source=TRITON_CONFIG,
)
@each_model
def tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    for kind, rows in (("input", model.message.input), ("output", model.message.output)):
        if not rows and not model.knows(kind):
            continue
        if not rows and _tensors_needed(model):
            # the Python backend serves a model that only takes or only gives
            mild = model.backend == "python" and bool(model.message.input or model.message.output)
            yield hit(model, f"the model has no {kind}", f"add its {kind}s", kind, severity="note" if mild else None)
        seen: dict[str, Any] = {}
        for index, row in enumerate(rows):
            if row.name in seen:
                same = seen[row.name] == row
                yield hit(
                    model,
                    f"{kind} {row.name!r} is declared twice" + ("" if same else " and the two differ"),
                    f"keep one {kind} {row.name!r}",
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
        yield hit(model, f"an {kind} has no name", 'name: "…"', kind, index)
    if row.data_type == 0 and model.knows(kind, "data_type") and _stated(model, kind, index, "data_type"):
        yield hit(model, f"{kind} {row.name!r} has no data type", "data_type: TYPE_FP32", kind, index)
    if not model.knows(kind, "dims") or not _stated(model, kind, index, "dims"):
        return
    if any(dim == 0 or dim < -1 for dim in row.dims) or not row.dims:
        yield hit(model, f"{kind} {row.name!r} has dims {text(row.dims)}", "dims of -1 or ≥ 1", kind, index, "dims")
    elif row.HasField("reshape"):
        shape = list(row.reshape.shape)
        if not shape and model.message.max_batch_size == 0 and model.knows("max_batch_size"):
            yield hit(
                model,
                f"{kind} {row.name!r} is reshaped to nothing in a model without batching",
                "max_batch_size of at least 1, or no reshape",
                kind,
                index,
                "reshape",
            )
        elif not reshapes(list(row.dims), shape):
            yield hit(
                model,
                f"{kind} {row.name!r}: {text(row.dims)} cannot be reshaped to {text(shape)}",
                "a shape with as many elements",
                kind,
                index,
                "reshape",
            )


def _tensors_needed(model: Model) -> bool:
    """Whether nothing completes the tensors of this model, so that the file must hold all of them."""
    if model.is_ensemble or model.backend in _NO_COMPLETION:
        return True
    if model.backend == "python":
        return model.code is not None and "auto_complete_config" not in model.code
    return False


def _stated(model: Model, kind: str, index: int, field: str) -> bool:
    """Whether the file states the field, or must."""
    assert model.config is not None
    return model.config.states(kind, index, field) or _tensors_needed(model)


@rule(
    "TF-TRI-125",
    "error",
    "nothing says which backend serves the model",
    why="Neither backend nor platform is set, and no file in the version folder has a name that tells.",
    source=TRITON_CORE,
)
@each_model
def no_backend(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.is_ensemble or not (model.knows("backend") and model.knows("platform")):
        return
    if not model.versions or any(version.names is None for version in model.versions):
        return  # that there is no version to look into is a finding of its own
    if not model.backend and not model.message.platform and "." not in model.name:
        yield hit(model, "neither backend nor platform is set", 'backend: "python"', "name")


@rule(
    "TF-TRI-126",
    "error",
    "platform and backend do not go together",
    why="Triton knows each platform with one backend and refuses other pairs and unknown platforms.",
    source=TRITON_CORE,
)
@each_model
def platform(model: Model, repository: Repository) -> Iterator[Hit]:
    stated, backend = model.message.platform, model.message.backend
    if not stated or stated == "ensemble" or HOLE.search(stated):
        return
    if stated not in PLATFORMS:
        if backend and backend not in set(MODEL_FILES.values()):
            return  # a backend of the user's own may call its platform what it likes
        near = nearest(stated, [*PLATFORMS, "ensemble"])
        yield hit(
            model,
            f"platform {stated!r} is not known",
            f'platform: "{near}"' if near else 'backend: "python" and no platform',
            "platform",
        )
    elif backend and PLATFORMS[stated] != backend:
        yield hit(
            model,
            f"platform {stated!r} belongs to backend {PLATFORMS[stated]!r}, not to {backend!r}",
            f'backend: "{PLATFORMS[stated]}"',
            "platform",
        )


_BACKENDS = (
    "python",
    "tensorrt",
    "onnxruntime",
    "pytorch",
    "openvino",
    "tensorrtllm",
    "vllm",
    "dali",
    "fil",
    "identity",
)


@rule(
    "TF-TRI-129",
    "error",
    "the backend's name is misspelt",
    why="The server looks for a library backends/NAME/libtriton_NAME.so and finds none.",
    source="https://github.com/triton-inference-server/backend",
)
@each_model
def backend_name(model: Model, repository: Repository) -> Iterator[Hit]:
    stated = model.message.backend
    if stated in _BACKENDS or not stated or HOLE.search(stated):
        return
    normal = {name.replace("_", ""): name for name in (*_BACKENDS, "onnx", "pytorchlibtorch")}
    plain = stated.lower().replace("-", "").replace("_", "")
    near = normal.get(plain) or nearest(stated, _BACKENDS, cutoff=0.85)
    near = {"onnx": "onnxruntime", "pytorchlibtorch": "pytorch"}.get(near or "", near)
    if near:
        yield hit(model, f"backend {stated!r} is not known", f'backend: "{near}"', "backend")


@rule(
    "TF-TRI-153",
    "error",
    "the runtime is no library of a backend",
    why="runtime names the file that the server loads from the backend's or the model's folder, and from nowhere else.",
    source=TRITON_CORE,
)
@each_model
def runtime(model: Model, repository: Repository) -> Iterator[Hit]:
    stated = model.message.runtime
    if not stated or HOLE.search(stated) or model.is_ensemble:
        return
    library = f"libtriton_{model.backend}.so"
    beside = {name for version in model.versions for name in version.names or ()}
    # model.py is the runtime of backends that are written in Python (vllm), not of a model
    own = stated != "model.py" and (stated in beside or model.has(stated))
    usual = model.backend in _BACKENDS and model.backend != "vllm"
    if "/" in stated or (usual and stated != library and not own):
        yield hit(model, f"runtime {stated!r}", f'leave it out, or runtime: "{library}"', "runtime")


@rule(
    "TF-TRI-130",
    "error",
    "the batch size is negative",
    why="max_batch_size is 0 (no batching) or the largest batch.",
    source=TRITON_CONFIG,
)
@each_model
def negative_batch(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.message.max_batch_size < 0:
        yield hit(model, f"max_batch_size is {model.message.max_batch_size}", "max_batch_size: 0", "max_batch_size")


@rule(
    "TF-TRI-026",
    "warning",
    "an instance group has no instance",
    why="Triton starts one instance in place of a count below 1.",
    source=TRITON_CONFIG,
)
@each_model
def instance_count(model: Model, repository: Repository) -> Iterator[Hit]:
    assert model.config is not None
    for index, group in enumerate(model.message.instance_group):
        stated = model.config.states("instance_group", index, "count") and model.knows("instance_group", "count")
        if group.count < 1 and stated:
            yield hit(
                model,
                f"an instance group has count {group.count}: Triton starts 1",
                "count: 1",
                "instance_group",
                index,
                "count",
            )


@rule(
    "TF-TRI-138",
    "error",
    "an instance group names GPUs and is not on a GPU",
    why="Triton refuses gpus in a group of KIND_CPU or KIND_MODEL.",
    source=TRITON_CORE,
)
@each_model
def gpus_without_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, group in enumerate(model.message.instance_group):
        kind = group.Kind.Name(group.kind)
        if group.gpus and kind in ("KIND_CPU", "KIND_MODEL"):
            yield hit(
                model,
                f"{kind} with gpus {list(group.gpus)}",
                "kind: KIND_GPU, or no gpus",
                "instance_group",
                index,
                "gpus",
            )


@rule(
    "TF-TRI-139",
    "error",
    "an instance group's GPUs cannot be",
    why="GPU ids count from 0; one that is named twice gets its instances twice, without a word.",
    source=TRITON_CONFIG,
)
@each_model
def gpu_ids(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, group in enumerate(model.message.instance_group):
        gpus = list(group.gpus)
        if any(gpu < 0 for gpu in gpus):
            yield hit(model, f"gpus {gpus} has a negative id", "gpus: [ 0 ]", "instance_group", index, "gpus")
        elif len(set(gpus)) != len(gpus):
            yield hit(
                model,
                f"gpus {gpus} names a GPU twice",
                f"gpus: {sorted(set(gpus))} with count: 2",
                "instance_group",
                index,
                "gpus",
                severity="warning",
            )


@rule(
    "TF-TRI-136",
    "error",
    "a response cache on a model that cannot have one",
    why="Triton refuses the response cache with decoupled responses and with sequence batching.",
    source=TRITON_CORE,
)
@each_model
def response_cache(model: Model, repository: Repository) -> Iterator[Hit]:
    message = model.message
    if not message.response_cache.enable:
        return
    if message.model_transaction_policy.decoupled:
        yield hit(model, "response_cache and decoupled", "response_cache { enable: false }", "response_cache")
    if message.HasField("sequence_batching"):
        yield hit(model, "response_cache and sequence_batching", "response_cache { enable: false }", "response_cache")


@rule(
    "TF-TRI-147",
    "error",
    "a ragged batch names tensors that are not there",
    why="batch_input and batch_output are computed from the declared tensors.",
    source="https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html",
)
@each_model
def batch_tensors(model: Model, repository: Repository) -> Iterator[Hit]:
    inputs = {row.name for row in model.message.input}
    outputs = {row.name for row in model.message.output}
    written: set[str] = set()
    for field, rows in (("batch_input", model.message.batch_input), ("batch_output", model.message.batch_output)):
        for index, row in enumerate(rows):
            place = (field, index, "source_input")
            if len(row.source_input) != 1:
                yield hit(model, f"{field} reads {len(row.source_input)} inputs", 'source_input: "…", one', *place)
            for name in row.source_input:
                if name not in inputs:
                    near = nearest(name, inputs)
                    remedy = f'source_input: "{near}"' if near else "an input's name"
                    yield hit(model, f"{field} reads {name!r}, which is no input", remedy, *place)
            for name in row.target_name if field == "batch_output" else ():
                place = (field, index, "target_name")
                if name not in outputs:
                    near = nearest(name, outputs)
                    remedy = f'target_name: "{near}"' if near else "an output's name"
                    yield hit(model, f"{field} writes {name!r}, which is no output", remedy, *place)
                elif name in written:
                    yield hit(model, f"{field} writes {name!r} a second time", "each output once", *place)
                written.add(name)


@rule(
    "TF-TRI-148",
    "warning",
    "ragged input without batching",
    why="Only a batch can be ragged; without batching the flag means nothing.",
    source="https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html",
)
@each_model
def ragged(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.message.max_batch_size == 0 and model.knows("max_batch_size") and not model.is_ensemble:
        for index, row in enumerate(model.message.input):
            if row.allow_ragged_batch:
                yield hit(
                    model,
                    f"input {row.name!r} may be ragged, and max_batch_size is 0",
                    "max_batch_size of at least 1",
                    "input",
                    index,
                    "allow_ragged_batch",
                )
                return


@rule(
    "TF-TRI-151",
    "warning",
    "a file that the configuration names is missing",
    why="Labels are read from the model's folder when the model is loaded.",
    source=TRITON_CONFIG,
)
@each_model
def label_files(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, row in enumerate(model.message.output):
        name = row.label_filename
        if name and not HOLE.search(name) and not model.has(name):
            yield hit(
                model,
                f"the labels {name!r} of output {row.name!r} are not there",
                f"put {name} into {model.name}/",
                "output",
                index,
                "label_filename",
            )


@rule(
    "TF-TRI-154",
    "warning",
    "a parameter is set twice",
    why="The second entry of a map replaces the first without a word; an edit of the first has no effect.",
    source=TRITON_CONFIG,
)
@each_model
def entries_twice(model: Model, repository: Repository) -> Iterator[Hit]:
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
                    "keep one of the two",
                    *(field, index, "key"),
                )
            first.setdefault(key.string(), line)


@rule(
    "TF-TRI-110",
    "note",
    "the folder holds files that Triton ignores",
    why="Editors' copies beside config.pbtxt are a sign of an edit that was not saved where it counts.",
    source=thread("TS#6813"),
)
def leftovers(repository: Repository) -> Iterator[Hit]:
    for model in repository.models.values():
        if model.config is None:
            continue
        for name in ("config.pbtxt.bak", "config.pbtxt.orig", "config.pbtxt~", "config.pbtxt.rej", "config.pbtxt.swp"):
            if model.has(name):
                yield hit_file(model, model.folder / name, f"{name} is ignored", f"rm {name}")
