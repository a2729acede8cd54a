"""Rules on the parameters of TensorRT-LLM's models: names, types, ranges, and settings that need each other.

Names, types and ranges come from the parameter table; the C++ backend puts its default in place of a value
that it cannot read and says so in a log line only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator

from triton_repo.history import load_history
from triton_repo.lint.names import nearest
from triton_repo.lint.repository import HOLE, Model, Repository
from triton_repo.lint.roles import device_sets, flag, is_engine_model, number, role
from triton_repo.lint.rules import TRTLLM_PARAMETERS, Hit, each_model, hit, listed, rule, thread
from triton_repo.parameters import Parameter, load_parameters

_CODE = (
    "https://github.com/triton-inference-server/tensorrtllm_backend/blob/v0.19.0/"
    "inflight_batcher_llm/src/model_instance_state.cc"
)
#: booleans as the C++ backend and the Python models read them
_BOOLEANS = frozenset({"true", "false", "1", "0"})
_PYTHON_BOOLEANS = _BOOLEANS | {"yes", "no", "t", "f", "y", "n"}
#: parameters of NVIDIA's own models that the emitted ones do not have
_OTHERS = {
    "preprocessing": {"multimodal_model_path", "gpt_model_path", "max_num_images", "vocab_size"},
    "postprocessing": set(),
    "tensorrt_llm_bls": {"tokenizer_dir", "skip_special_tokens"},
    "tensorrt_llm": set(),
}
_MANDATORY = {
    "tensorrt_llm": ("gpt_model_path", "gpt_model_type"),
    "preprocessing": ("tokenizer_dir",),
    "postprocessing": ("tokenizer_dir",),
    "tensorrt_llm_bls": (),
}
_ENUMERATIONS_THAT_STOP = frozenset({"gpt_model_type", "guided_decoding_backend"})


def rows_of(name: str) -> dict[str, Parameter]:
    """The parameter table's rows of a role, older names included."""
    table = load_parameters("inflight_batcher_llm")
    return {row.name: row for row in table.rows if row.place == "parameter" and name in row.models}


def each_role(
    check: Callable[[Model, str, dict[str, Parameter]], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every TensorRT-LLM model, with its role and its rows."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        found = role(model)
        if found is not None and model.knows("parameters"):
            yield from check(model, found, rows_of(found))

    return each_model(functools.wraps(check)(checked))


def each_engine_model(check: Callable[[Model, Repository], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every model that runs an engine."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        if is_engine_model(model):
            yield from check(model, repository)

    return each_model(functools.wraps(check)(checked))


def at(model: Model, name: str) -> tuple[str | int, ...]:
    """Where a parameter's value stands."""
    assert model.config is not None
    path: tuple[str | int, ...] = ("parameters", f"key={name}", "value", "string_value")
    return path if model.config.states(*path) else path[:2]


@rule(
    "TF-TRI-180",
    "error",
    "a parameter that must be set is not",
    why="Without the engine's or the tokenizer's folder the model cannot load; an unfilled ${…} is taken as a path.",
    source=thread("TB#61"),
)
@each_role
def mandatory(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    for name in _MANDATORY[found]:
        text = model.raw_parameter(name)
        if text is None:
            if name == "gpt_model_type":
                continue  # the backend says in-flight batching itself when it is missing
            if model.code is not None and model.backend == "python" and name not in model.code:
                continue  # another code than NVIDIA's, which does not ask for it
            yield hit(
                model,
                f"{name} is missing",
                f'parameters {{ key: "{name}" value {{ string_value: "…" }} }}',
                "parameters",
            )
        elif not text.strip():
            yield hit(model, f"{name} is empty", f'{name}: "/path/to/it"', *at(model, name))
        elif HOLE.search(text):
            template = rows[name].template if name in rows else None
            yield hit(
                model,
                f"{name} is {text!r}: not filled in",
                f"fill {template or name} in",
                *at(model, name),
            )


@rule(
    "TF-TRI-181",
    "note",
    "optional parameters were left as placeholders",
    why="The backend takes an unfilled ${…} of an optional parameter as not set and uses its default, as in "
    "NVIDIA's own guide; a value that was meant to be set is not.",
    source=TRTLLM_PARAMETERS,
)
@each_role
def optional_holes(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    holes = [
        name
        for name in model.message.parameters
        if HOLE.search(model.message.parameters[name].string_value) and name not in _MANDATORY[found]
    ]
    if holes:
        yield hit(
            model,
            f"{len(holes)} optional parameter{'s are' if len(holes) > 1 else ' is'} not filled in: {listed(holes)}",
            "leave them out, or fill them in",
            *at(model, sorted(holes)[0]),
        )


@rule(
    "TF-TRI-182",
    "warning",
    "a parameter is not known",
    why="The backend asks for the names that it knows and never sees this one; its default holds instead.",
    source=TRTLLM_PARAMETERS,
)
@each_role
def unknown_parameter(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    known = set(rows) | _OTHERS[found]
    old = load_history().old_names(found)
    for name in sorted(set(model.message.parameters) - known - set(old)):
        strict = found == "tensorrt_llm" and model.backend == "tensorrtllm"
        near = nearest(name, known | set(old), cutoff=0.6 if strict else 0.85)
        if near or strict:
            yield hit(
                model,
                f"{name} is no parameter of {found}",
                f'key: "{near}"' if near else "leave it out",
                "parameters",
                f"key={name}",
                "key",
            )


@rule(
    "TF-TRI-187",
    "warning",
    "a parameter of an older version",
    why="The backend has dropped or renamed it; the setting is lost without an error.",
    source=TRTLLM_PARAMETERS,
)
@each_role
def old_parameter(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    for name, change in load_history().old_names(found).items():
        if name not in model.message.parameters or model.parameter(name) is None:
            continue
        if change.kind == "renamed":
            yield hit(
                model,
                f"{name} is called {change.to} since {change.version}",
                f'key: "{change.to}"',
                "parameters",
                f"key={name}",
                "key",
            )
        else:
            ignored = change.kind == "ignored"
            yield hit(
                model,
                f"{name} {'has no effect' if ignored else 'is gone'} since {change.version}: {change.says}",
                "leave it out, or trtforge triton upgrade",
                "parameters",
                f"key={name}",
                "key",
                severity="note" if ignored else None,
            )


@rule(
    "TF-TRI-183",
    "error",
    "a parameter's value is of the wrong type or outside its range",
    why="The backend refuses it, or puts its default in its place and says so in the log only.",
    source=_CODE,
)
@each_role
def values(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    for name, row in rows.items():
        text = model.parameter(name)
        if text is None or row.kind == "choice":
            continue
        fault = _fault(row, text, found)
        if fault:
            yield hit(model, f"{name}: {fault}", f"{name}: {row.allowed}", *at(model, name))


def _fault(row: Parameter, text: str, found: str) -> str | None:
    if row.kind == "boolean":
        allowed = _BOOLEANS if found == "tensorrt_llm" else _PYTHON_BOOLEANS
        return None if text.lower() in allowed else f"{text!r} is neither true nor false"
    if row.kind == "fraction" and re.fullmatch(r"0*\.?0*", text) and row.name == "kv_cache_free_gpu_mem_fraction":
        return f"{text} leaves no memory for the KV cache"
    if row.kind == "choices":
        return row.fault(re.sub(r"\s+", " ", text).replace(",{", ", {"))
    if row.kind in ("integer", "integers"):
        return row.fault(text.replace(" ", ""))
    return row.fault(text)


@rule(
    "TF-TRI-185",
    "error",
    "a parameter's value is none of the known ones",
    why="gpt_model_type and guided_decoding_backend stop the load; for the others the default holds silently.",
    source=_CODE,
)
@each_role
def choices(model: Model, found: str, rows: dict[str, Parameter]) -> Iterator[Hit]:
    for name, row in rows.items():
        text = model.parameter(name)
        if text is None or row.kind != "choice":
            continue
        known = {value.lower(): value for value in row.values}
        exact = text in row.values or (name == "gpt_model_type" and text.lower() in known)
        if not exact:
            near = known.get(text.lower()) or nearest(text, row.values)
            yield hit(
                model,
                f"{name} {text!r} is none of {', '.join(row.values)}",
                f'{name}: "{near or row.values[0]}"',
                *at(model, name),
                severity=None if name in _ENUMERATIONS_THAT_STOP else "warning",
            )


@rule(
    "TF-TRI-186",
    "warning",
    "static batching of an engine",
    why="V1 waits for the longest answer of a batch before the next batch begins; in-flight batching does not.",
    source=TRTLLM_PARAMETERS,
)
@each_engine_model
def static_batching(model: Model, repository: Repository) -> Iterator[Hit]:
    text = model.parameter("gpt_model_type")
    if text is not None and text.lower() == "v1":
        decoupled = bool(model.message.model_transaction_policy.decoupled)
        yield hit(
            model,
            "gpt_model_type V1 batches statically" + (" and cannot stream" if decoupled else ""),
            'gpt_model_type: "inflight_fused_batching"',
            *at(model, "gpt_model_type"),
            severity="warning" if decoupled else "note",
        )


@rule(
    "TF-TRI-189",
    "error",
    "speculation is set by halves",
    why="A tree of choices is used by its own decoding mode only, and lookahead needs all three sizes.",
    source=thread("TL#2115"),
)
@each_engine_model
def speculation(model: Model, repository: Repository) -> Iterator[Hit]:
    mode = model.parameter("decoding_mode")
    for name, wanted in (("medusa_choices", "medusa"), ("eagle_choices", "eagle")):
        text = model.parameter(name)
        if text is None:
            continue
        if mode != wanted:
            yield hit(
                model,
                f"{name} with decoding_mode {mode or 'not set'}: the choices are not used",
                f'decoding_mode: "{wanted}"',
                *at(model, name),
                severity="warning",
            )
        yield from _tree(model, name, text)
    sizes = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    stated = [name for name in sizes if model.parameter(name) is not None]
    if stated and len(stated) < 3:
        missing = [name for name in sizes if name not in stated]
        yield hit(model, f"{listed(stated)} without {listed(missing)}", f"set {listed(missing)}", *at(model, stated[0]))
    elif stated and mode != "lookahead":
        yield hit(
            model,
            f"lookahead sizes with decoding_mode {mode or 'not set'}",
            'decoding_mode: "lookahead"',
            *at(model, stated[0]),
            severity="warning",
        )


def _tree(model: Model, name: str, text: str) -> Iterator[Hit]:
    """Every node's parent must be in the tree, and no node twice."""
    nodes = [tuple(int(n) for n in re.findall(r"\d+", group)) for group in re.findall(r"\{([^{}]*)\}", text)]
    known = set(nodes)
    orphans = sorted({node for node in nodes if len(node) > 1 and node[:-1] not in known})
    if orphans:
        first = "{" + ", ".join(map(str, orphans[0])) + "}"
        parent = "{" + ", ".join(map(str, orphans[0][:-1])) + "}"
        yield hit(model, f"{name}: {first} has no parent {parent} in the tree", f"add {parent}", *at(model, name))
    elif len(known) != len(nodes):
        yield hit(model, f"{name} names a node twice", "each path once", *at(model, name))


@rule(
    "TF-TRI-190",
    "warning",
    "beams that cannot be used",
    why="Streaming gives one beam only, and sampling modes ignore beams above one.",
    source=thread("TB#140"),
)
@each_engine_model
def beams(model: Model, repository: Repository) -> Iterator[Hit]:
    width = number(model, "max_beam_width")
    mode = model.parameter("decoding_mode")
    if width is not None and width > 1:
        if model.message.model_transaction_policy.decoupled:
            yield hit(
                model,
                f"max_beam_width {width:g} in a decoupled model: requests that stream are refused more than one beam",
                'max_beam_width: "1", or decoupled: false',
                *at(model, "max_beam_width"),
                severity="note",  # requests that do not stream may still use them
            )
        if mode is not None and mode != "beam_search":
            yield hit(
                model,
                f"max_beam_width {width:g} with decoding_mode {mode}",
                'decoding_mode: "beam_search", or max_beam_width: "1"',
                *at(model, "max_beam_width"),
            )
    if mode == "beam_search" and (width is None or width <= 1):
        yield hit(
            model,
            f"decoding_mode beam_search with max_beam_width {f'{width:g}' if width else 'not set (1)'}",
            'max_beam_width: "4", or no decoding_mode',
            *at(model, "decoding_mode"),
        )


@rule(
    "TF-TRI-199",
    "error",
    "gpu_device_ids do not go with the instances",
    why="Each instance takes one set of GPUs; a GPU in two sets is loaded twice.",
    source=thread("TB#398"),
)
@each_engine_model
def devices(model: Model, repository: Repository) -> Iterator[Hit]:
    yield from device_faults(model, None)


def device_faults(model: Model, ranks: int | None) -> Iterator[Hit]:
    """Faults of ``gpu_device_ids`` against the instance count and, when known, the ranks of one instance."""
    text = model.parameter("gpu_device_ids")
    count = sum(max(group.count, 1) for group in model.message.instance_group) or 1
    if text is None:
        if count > 1 and model.knows("instance_group", "count"):
            yield hit(
                model,
                f"{count} instances without gpu_device_ids: all take the same GPUs",
                'gpu_device_ids: "' + ";".join(str(i) for i in range(count)) + '"',
                "instance_group",
                severity="warning",
            )
        return
    sets = device_sets(text)
    if sets is None:
        return  # its form is a finding of its own
    if len(sets) != count and model.knows("instance_group", "count"):
        yield hit(
            model,
            f"{len(sets)} set{'s' if len(sets) > 1 else ''} of GPUs for {count} instance{'s' if count > 1 else ''}",
            f"count: {len(sets)}, or {count} sets parted by semicolons",
            *at(model, "gpu_device_ids"),
        )
    used = [device for group in sets for device in group]
    twice = sorted({device for device in used if used.count(device) > 1})
    if any(len(set(group)) != len(group) for group in sets):
        yield hit(
            model, f"GPU {listed(map(str, twice))} twice in one set", "each GPU once", *at(model, "gpu_device_ids")
        )
    elif twice:
        yield hit(
            model,
            f"GPU {listed(map(str, twice))} is in two sets",
            "sets without a common GPU, or a cache that leaves room for both",
            *at(model, "gpu_device_ids"),
            severity="warning",
        )
    if ranks is not None:
        wrong = [group for group in sets if len(group) != ranks]
        if wrong:
            yield hit(
                model,
                f"{len(wrong[0])} GPUs in a set for {ranks} rank{'s' if ranks > 1 else ''}",
                f"{ranks} GPUs in every set",
                *at(model, "gpu_device_ids"),
            )


@rule(
    "TF-TRI-202",
    "warning",
    "an engine model's instances are on KIND_GPU",
    why="TensorRT-LLM takes its GPUs itself; KIND_GPU makes Triton start one instance a visible GPU, and all of "
    "them load the engine.",
    source=thread("TB#576"),
)
@each_engine_model
def kind_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    for index, group in enumerate(model.message.instance_group):
        if group.Kind.Name(group.kind) == "KIND_GPU":
            where = f"gpus {list(group.gpus)}" if group.gpus else "no gpus"
            yield hit(
                model,
                f"KIND_GPU with {where}",
                "kind: KIND_CPU and gpu_device_ids",
                "instance_group",
                index,
                "kind",
            )


@rule(
    "TF-TRI-209",
    "warning",
    "a queue delay fights in-flight batching",
    why="The engine admits new requests at every step, so a batch need not be waited for; the delay is added to "
    "the time to the first token.",
    source=thread("TS#5317"),
)
@each_engine_model
def queue_delay(model: Model, repository: Repository) -> Iterator[Hit]:
    delay = model.message.dynamic_batching.max_queue_delay_microseconds
    if delay and (model.parameter("gpt_model_type") or "inflight").lower() != "v1":
        # NVIDIA's guides use up to 1000 µs to let requests of one moment join; that is below one step
        yield hit(
            model,
            f"requests wait up to {delay / 1000:g} ms for others",
            "max_queue_delay_microseconds: 0",
            "dynamic_batching",
            "max_queue_delay_microseconds",
            severity="warning" if delay > 5000 else "note",
        )


@rule(
    "TF-TRI-212",
    "error",
    "guided decoding lacks its tokenizer",
    why="xgrammar builds its masks from the tokenizer: a file for the C++ backend, a folder for the Python one. "
    "Without it the C++ backend switches guided decoding off and the requests' grammars are ignored.",
    source=thread("TL#2166"),
)
@each_engine_model
def guided(model: Model, repository: Repository) -> Iterator[Hit]:
    if model.parameter("guided_decoding_backend") is None:
        if model.parameter("xgrammar_tokenizer_info_path") is not None:
            yield hit(
                model,
                "xgrammar_tokenizer_info_path without guided_decoding_backend",
                'guided_decoding_backend: "xgrammar"',
                *at(model, "xgrammar_tokenizer_info_path"),
                severity="warning",
            )
        return
    needed = "tokenizer_dir" if model.backend == "python" else "xgrammar_tokenizer_info_path"
    if model.parameter(needed) is None:
        yield hit(
            model,
            f"guided_decoding_backend without {needed}",
            f'{needed}: "…"',
            *at(model, "guided_decoding_backend"),
        )


@rule(
    "TF-TRI-196",
    "warning",
    "a setting that works only with another one",
    why="Alone it is read and has no effect.",
    source=TRTLLM_PARAMETERS,
)
@each_engine_model
def pairs(model: Model, repository: Repository) -> Iterator[Hit]:
    host = number(model, "kv_cache_host_memory_bytes")
    if host and flag(model, "enable_kv_cache_reuse") is False:
        yield hit(
            model,
            f"kv_cache_host_memory_bytes {host:g} with enable_kv_cache_reuse false: nothing is ever moved there",
            'enable_kv_cache_reuse: "true"',
            *at(model, "kv_cache_host_memory_bytes"),
        )
    graphs = number(model, "cuda_graph_cache_size")
    if graphs and not flag(model, "cuda_graph_mode"):
        yield hit(
            model,
            f"cuda_graph_cache_size {graphs:g} without cuda_graph_mode",
            'cuda_graph_mode: "true"',
            *at(model, "cuda_graph_cache_size"),
        )
    if model.parameter("cross_kv_cache_fraction") is not None and model.parameter("encoder_model_path") is None:
        yield hit(
            model,
            "cross_kv_cache_fraction without an encoder: it is for encoder-decoder models only",
            "leave it out, or encoder_model_path",
            *at(model, "cross_kv_cache_fraction"),
        )
    if model.parameter("sink_token_length") not in (None, "0") and model.parameter("max_attention_window_size") is None:
        yield hit(
            model,
            "sink_token_length without max_attention_window_size",
            'max_attention_window_size: "…"',
            *at(model, "sink_token_length"),
        )
