"""Rules on settings of an engine's model that need each other or fight each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from triton_repo.lint.engine_models import at, device_faults, each_engine_model
from triton_repo.lint.hits import TRTLLM_PARAMETERS, Hit, hit, listed, rule
from triton_repo.lint.remedies import Remedy, drop, here, leaving, no_parameter, parameter, person, put, together
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.roles import flag, number
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(70, "Settings of an engine's model")


@rule("TF-TRI-186", "warning", "static batching of an engine", TRTLLM_PARAMETERS)
@each_engine_model
def static_batching(model: Model, repository: Repository) -> Iterator[Hit]:
    """V1 waits for the longest answer of a batch before the next batch begins; in-flight batching does not."""
    text = model.parameter("gpt_model_type")
    if text is not None and text.lower() == "v1":
        decoupled = bool(model.message.model_transaction_policy.decoupled)
        message = "gpt_model_type V1 batches statically" + (" and cannot stream" if decoupled else "")
        remedy = parameter(model, "gpt_model_type", "inflight_fused_batching")
        yield hit(model, message, remedy, *at(model, "gpt_model_type"), severity="warning" if decoupled else "note")


@rule("TF-TRI-189", "error", "speculation is set by halves", thread("TL#2115"))
@each_engine_model
def speculation(model: Model, repository: Repository) -> Iterator[Hit]:
    """A tree of choices is used by its own decoding mode only, and lookahead needs all three sizes."""
    mode = model.parameter("decoding_mode")
    for name, wanted in (("medusa_choices", "medusa"), ("eagle_choices", "eagle")):
        text = model.parameter(name)
        if text is None:
            continue
        if mode != wanted:
            message = f"{name} with decoding_mode {mode or 'not set'}: the choices are not used"
            remedies = [parameter(model, "decoding_mode", wanted), no_parameter(model, name)]
            yield hit(model, message, remedies, *at(model, name), severity="warning")
        yield from _tree(model, name, text)
    sizes = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    stated = [name for name in sizes if model.parameter(name) is not None]
    missing = [name for name in sizes if name not in stated]
    if stated and missing:
        remedies = [person(f"set {listed(missing)}"), _no_sizes(model, stated)]
        yield hit(model, f"{listed(stated)} without {listed(missing)}", remedies, *at(model, stated[0]))
    elif mode == "lookahead" and missing:
        message = f"decoding_mode lookahead without {listed(missing)}: the model does not load"
        remedies = [person(f"set {listed(missing)}"), no_parameter(model, "decoding_mode", "no decoding_mode")]
        yield hit(model, message, remedies, *at(model, "decoding_mode"))
    elif stated and mode != "lookahead":
        message = f"lookahead sizes with decoding_mode {mode or 'not set'}"
        remedies = [parameter(model, "decoding_mode", "lookahead"), _no_sizes(model, stated)]
        yield hit(model, message, remedies, *at(model, stated[0]), severity="warning")


def _no_sizes(model: Model, stated: list[str]) -> Remedy:
    """No lookahead at all."""
    names = [*stated, *(["decoding_mode"] if model.parameter("decoding_mode") == "lookahead" else [])]
    return together(*(no_parameter(model, name) for name in names), text=f"leave {listed(names)} out")


def _one_beam(model: Model) -> Remedy:
    """One beam, and no decoding mode that is of several."""
    edits = parameter(model, "max_beam_width", "1").edits
    if model.parameter("decoding_mode") != "beam_search":
        return Remedy('max_beam_width: "1"', edits)
    return Remedy('max_beam_width: "1" and no decoding_mode', edits + no_parameter(model, "decoding_mode").edits)


def _tree(model: Model, name: str, text: str) -> Iterator[Hit]:
    """Every node's parent must be in the tree, and no node twice."""
    nodes = [tuple(int(n) for n in re.findall(r"\d+", group)) for group in re.findall(r"\{([^{}]*)\}", text)]
    known = set(nodes)
    orphans = sorted({node for node in nodes if len(node) > 1 and node[:-1] not in known})
    if orphans:
        first = "{" + ", ".join(map(str, orphans[0])) + "}"
        parent = "{" + ", ".join(map(str, orphans[0][:-1])) + "}"
        whole = sorted(
            {node[:n] for node in nodes for n in range(1, len(node) + 1)}, key=lambda node: (len(node), node)
        )
        remedy = parameter(
            model, name, _paths(whole), text=f"add {parent}" + (", and others" if len(orphans) > 1 else "")
        )
        yield hit(model, f"{name}: {first} has no parent {parent} in the tree", remedy, *at(model, name))
    elif len(known) != len(nodes):
        remedy = parameter(model, name, _paths(list(dict.fromkeys(nodes))), text="each path once")
        yield hit(model, f"{name} names a node twice", remedy, *at(model, name))


def _paths(nodes: list[tuple[int, ...]]) -> str:
    return ", ".join("{" + ", ".join(map(str, node)) + "}" for node in nodes)


@rule("TF-TRI-190", "warning", "beams that cannot be used", thread("TB#140"))
@each_engine_model
def beams(model: Model, repository: Repository) -> Iterator[Hit]:
    """Streaming gives one beam only, and sampling modes ignore beams above one."""
    width = number(model, "max_beam_width")
    mode = model.parameter("decoding_mode")
    if width is not None and width > 1:
        if model.message.model_transaction_policy.decoupled:
            yield hit(
                model,
                f"max_beam_width {width:g} in a decoupled model: requests that stream are refused more than one beam",
                (_one_beam(model), person("decoupled: false, in every model that hands the stream on")),
                *at(model, "max_beam_width"),
                severity="note",  # requests that do not stream may still use them
            )
        if mode is not None and mode != "beam_search":
            message = f"max_beam_width {width:g} with decoding_mode {mode}"
            remedies = [parameter(model, "decoding_mode", "beam_search"), parameter(model, "max_beam_width", "1")]
            yield hit(model, message, remedies, *at(model, "max_beam_width"))
    if mode == "beam_search" and (width is None or width <= 1):
        message = f"decoding_mode beam_search with max_beam_width {f'{width:g}' if width else 'not set (1)'}"
        remedies = [no_parameter(model, "decoding_mode", "no decoding_mode"), *_wider(model)]
        yield hit(model, message, remedies, *at(model, "decoding_mode"))


def _wider(model: Model) -> tuple[Remedy, ...]:
    """As many beams as the engine has, or as a person wants where it cannot be read."""
    built = model.engine.limit("max_beam_width") if model.engine is not None else None
    if model.message.model_transaction_policy.decoupled:
        return ()
    if built is None:
        return (person('max_beam_width: "4", with an engine that has them'),)
    return (parameter(model, "max_beam_width", str(built)),) if built > 1 else ()


@rule("TF-TRI-199", "error", "gpu_device_ids do not go with the instances", thread("TB#398"))
@each_engine_model
def devices(model: Model, repository: Repository) -> Iterator[Hit]:
    """Each instance takes one set of GPUs; a GPU in two sets is loaded twice."""
    yield from device_faults(model, None)


@rule("TF-TRI-202", "warning", "an engine model's instances are on KIND_GPU", thread("TB#576"))
@each_engine_model
def kind_gpu(model: Model, repository: Repository) -> Iterator[Hit]:
    """TensorRT-LLM takes its GPUs itself; KIND_GPU makes Triton start one instance a visible GPU, and all of them load
    the engine."""
    for index, group in enumerate(model.message.instance_group):
        if group.Kind.Name(group.kind) == "KIND_GPU":
            where = f"gpus {list(group.gpus)}" if group.gpus else "no gpus"
            message = f"KIND_GPU with {where}"
            yield hit(model, message, _on_cpu(model, index, list(group.gpus)), "instance_group", index, "kind")


def _on_cpu(model: Model, index: int, gpus: list[int]) -> Remedy:
    """The same GPUs, taken by TensorRT-LLM: one rank each where nothing else is said."""
    edits = here("KIND_CPU").edits
    if gpus:
        edits += drop(model, "instance_group", index, "gpus").edits
    if gpus and model.parameter("gpu_device_ids") is None:
        edits += parameter(model, "gpu_device_ids", ",".join(map(str, gpus))).edits
    return Remedy("kind: KIND_CPU" + (" and gpu_device_ids" if gpus else ""), edits)


@rule("TF-TRI-209", "warning", "a queue delay fights in-flight batching", thread("TS#5317"))
@each_engine_model
def queue_delay(model: Model, repository: Repository) -> Iterator[Hit]:
    """The engine admits new requests at every step, so a batch need not be waited for; the delay is added to the time
    to the first token."""
    delay = model.message.dynamic_batching.max_queue_delay_microseconds
    if delay and (model.parameter("gpt_model_type") or "inflight").lower() != "v1":
        # NVIDIA's guides use up to 1000 µs to let requests of one moment join; that is below one step
        yield hit(
            model,
            f"requests wait up to {delay / 1000:g} ms for others",
            here("0"),
            "dynamic_batching",
            "max_queue_delay_microseconds",
            severity="warning" if delay > 5000 else "note",
        )


@rule("TF-TRI-212", "error", "guided decoding lacks its tokenizer", thread("TL#2166"))
@each_engine_model
def guided(model: Model, repository: Repository) -> Iterator[Hit]:
    """xgrammar builds its masks from the tokenizer: a file for the C++ backend, a folder for the Python one. Without it
    the C++ backend switches guided decoding off and the requests' grammars are ignored."""
    if model.parameter("guided_decoding_backend") is None:
        if model.parameter("xgrammar_tokenizer_info_path") is not None:
            message = "xgrammar_tokenizer_info_path without guided_decoding_backend"
            remedies = [_with_guides(model), no_parameter(model, "xgrammar_tokenizer_info_path")]
            yield hit(model, message, remedies, *at(model, "xgrammar_tokenizer_info_path"), severity="warning")
        return
    needed = "tokenizer_dir" if model.backend == "python" else "xgrammar_tokenizer_info_path"
    if model.parameter(needed) is None:
        yield hit(
            model,
            f"guided_decoding_backend without {needed}",
            (person(f'{needed}: "…"'), no_parameter(model, "guided_decoding_backend", "no guided_decoding_backend")),
            *at(model, "guided_decoding_backend"),
        )


def _with_guides(model: Model) -> Remedy:
    """Guided decoding turned on; a model without inputs for guides has a finding of its own then."""
    on = parameter(model, "guided_decoding_backend", "xgrammar")
    if not _no_guides(model):
        return on
    return leaving(replace(on, text=f"{on.text}, with inputs for its guides"), "TF-TRI-259")


def _no_guides(model: Model) -> list[str]:
    """The inputs of a guide that the model lacks."""
    declared = {row.name for row in model.message.input}
    return [name for name in ("guided_decoding_guide_type", "guided_decoding_guide") if name not in declared]


@rule("TF-TRI-259", "note", "guided decoding that no request can ask for", TRTLLM_PARAMETERS)
@each_engine_model
def unasked_guide(model: Model, repository: Repository) -> Iterator[Hit]:
    """A grammar comes with a request, in guided_decoding_guide and its type; a model without these inputs builds masks
    that nobody uses."""
    if model.parameter("guided_decoding_backend") is None or not model.knows("input"):
        return
    missing = _no_guides(model)
    if not missing:
        return
    names = ["guided_decoding_backend"]
    names += [name for name in ("xgrammar_tokenizer_info_path",) if name in model.message.parameters]
    rows = [
        put(
            model,
            f'{{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] optional: true allow_ragged_batch: true }}',
            "input",
            f"name={name}",
        )
        for name in missing
    ]
    batching = model.message.max_batch_size > 0
    message = f"guided_decoding_backend, and the model has no input {listed(missing)}"
    remedies = [
        *((together(*rows, text=f"inputs {listed(missing)} of TYPE_STRING"),) if batching else ()),
        together(*(no_parameter(model, name) for name in names), text=f"leave {listed(names)} out"),
    ]
    yield hit(model, message, remedies, *at(model, "guided_decoding_backend"))


@rule("TF-TRI-196", "warning", "a setting that works only with another one", TRTLLM_PARAMETERS)
@each_engine_model
def pairs(model: Model, repository: Repository) -> Iterator[Hit]:
    """Alone it is read and has no effect."""
    host = number(model, "kv_cache_host_memory_bytes")
    if host and flag(model, "enable_kv_cache_reuse") is False:
        yield hit(
            model,
            f"kv_cache_host_memory_bytes {host:g} with enable_kv_cache_reuse false: nothing is ever moved there",
            (parameter(model, "enable_kv_cache_reuse", "true"), no_parameter(model, "kv_cache_host_memory_bytes")),
            *at(model, "kv_cache_host_memory_bytes"),
        )
    graphs = number(model, "cuda_graph_cache_size")
    if graphs and not flag(model, "cuda_graph_mode"):
        message = f"cuda_graph_cache_size {graphs:g} without cuda_graph_mode"
        remedies = [parameter(model, "cuda_graph_mode", "true"), no_parameter(model, "cuda_graph_cache_size")]
        yield hit(model, message, remedies, *at(model, "cuda_graph_cache_size"))
    if (
        model.parameter("cross_kv_cache_fraction") is not None
        and model.parameter("encoder_model_path") is None
        and not _attends_across(model, repository)
    ):
        yield hit(
            model,
            "cross_kv_cache_fraction without an encoder: the server of a decoder refuses to start with it",
            (no_parameter(model, "cross_kv_cache_fraction"), person("encoder_model_path, for an encoder-decoder")),
            *at(model, "cross_kv_cache_fraction"),
            severity="error",
        )
    if model.parameter("sink_token_length") not in (None, "0") and model.parameter("max_attention_window_size") is None:
        message = "sink_token_length without max_attention_window_size"
        remedies = [person('max_attention_window_size: "…"'), no_parameter(model, "sink_token_length")]
        yield hit(model, message, remedies, *at(model, "sink_token_length"))


def _attends_across(model: Model, repository: Repository) -> bool:
    """Whether a decoder may have cross attention without an encoder's engine: its media go through another model."""
    engine = model.engine
    if engine is not None and "cross_attention" in engine.pretrained:
        return bool(engine.pretrained["cross_attention"])
    return any(
        other.parameter("multimodal_encoders_name") is not None or other.parameter("multimodal_model_path") is not None
        for other in repository.models.values()
    )
