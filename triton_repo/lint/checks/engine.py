"""Rules on a repository against the ``config.json`` of the TensorRT-LLM engine that it serves.

They apply where the engine can be reached from here; an absolute path that only exists inside a container is
not judged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from triton_repo.folder_kind import folder_kind
from triton_repo.lint.engine_models import at, device_faults, each_engine_model
from triton_repo.lint.files import there
from triton_repo.lint.hits import TRTLLM_PARAMETERS, Hit, each_model, hit, rule
from triton_repo.lint.remedies import Edit, Remedy, here, leaving, no_parameter, parameter, person, put, together
from triton_repo.lint.repository import Engine, Model, Repository
from triton_repo.lint.roles import flag, number, role
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(80, "Against the TensorRT-LLM engine")

_DTYPES = {"float16": "TYPE_FP16", "bfloat16": "TYPE_BF16", "float32": "TYPE_FP32"}


def each_engine(check: Callable[[Model, Engine], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
    """A check of every engine model whose engine can be read."""

    def checked(model: Model, repository: Repository) -> Iterable[Hit]:
        if model.engine is not None:
            yield from check(model, model.engine)

    return each_engine_model(functools.wraps(check)(checked))


def _rebuilt(options: str) -> Remedy:
    """An engine that is built otherwise."""
    return person(f"trtllm-build {options}")


def _batch(model: Model, repository: Repository, size: int) -> Remedy:
    """A batch size for the engine's model and for every model of its chain that has the same."""
    edits: list[Edit] = []
    for other in repository.models.values():
        together_with = other is model or role(other) is not None or other.is_ensemble
        if together_with and other.knows("max_batch_size") and other.message.max_batch_size > size:
            edits += put(other, str(size), "max_batch_size").edits
            edits += _preferred(other, size)
    return Remedy(f"max_batch_size: {size}, in the models around it too", tuple(edits))


def _preferred(model: Model, size: int) -> tuple[Edit, ...]:
    sizes = model.message.dynamic_batching.preferred_batch_size
    if not any(one > size for one in sizes):
        return ()
    fit = sorted({one for one in sizes if one <= size} or {size})
    return put(model, str(fit), "dynamic_batching", "preferred_batch_size").edits


def _in_every(repository: Repository, name: str, wanted: str) -> Iterator[Remedy]:
    """The type of an output in every model that has one of that name."""
    for other in repository.models.values():
        for index, row in enumerate(other.message.output):
            if row.name == name and other.readable:
                yield put(other, wanted, "output", index, "data_type")


@rule("TF-TRI-188", "error", "the engine's folder holds no engine", thread("TB#79"))
@each_engine_model
def engine_folder(model: Model, repository: Repository) -> Iterator[Hit]:
    """The backend reads config.json and one rankN.engine a rank from gpt_model_path."""
    stated = model.parameter("gpt_model_path")
    if stated is None:
        return
    folder = model.here(stated)
    if folder is None:
        if not Path(stated).is_absolute() and model.engine is None:
            message = f"gpt_model_path {stated!r} is relative and leads nowhere from {model.name}/"
            remedies = [person("start the server in the folder above it"), person("an absolute path")]
            yield hit(model, message, remedies, *at(model, "gpt_model_path"), severity="note")
        return
    if model.engine is None:
        kind = folder_kind(folder) if folder.is_dir() else None
        message = f"{stated} has no config.json of an engine" + (f": it is {kind}" if kind is not None else "")
        yield hit(model, message, person("the folder that trtllm-build wrote"), *at(model, "gpt_model_path"))
        return
    ranks = model.engine.world_size
    missing = [r for r in range(ranks or 0) if not there(folder / f"rank{r}.engine")]
    if missing:
        message = f"{stated} lacks {', '.join(f'rank{r}.engine' for r in missing[:4])} of {ranks} ranks"
        yield hit(model, message, person("build all ranks again"), *at(model, "gpt_model_path"))


def _unpaged(model: Model, engine: Engine, name: str) -> Iterator[Hit]:
    """A setting under which the context phase reads blocks of the cache, and an engine whose kernels do not."""
    if flag(model, name) and engine.plugins.get("use_paged_context_fmha") is False:
        message = f"{name} true, and the engine was built with use_paged_context_fmha false"
        remedies = [parameter(model, name, "false"), _rebuilt("--use_paged_context_fmha enable")]
        yield hit(model, message, remedies, *at(model, name))


@rule("TF-TRI-191", "error", "KV-cache reuse needs paged-context attention", thread("TB#271"))
@each_engine
def reuse(model: Model, engine: Engine) -> Iterator[Hit]:
    """Reused blocks are read by the context phase, which only kernels built with use_paged_context_fmha do."""
    return _unpaged(model, engine, "enable_kv_cache_reuse")


@rule("TF-TRI-192", "error", "chunked context needs paged-context attention", TRTLLM_PARAMETERS)
@each_engine
def chunked(model: Model, engine: Engine) -> Iterator[Hit]:
    """A chunk attends to the blocks of the chunks before it."""
    return _unpaged(model, engine, "enable_chunked_context")


@rule("TF-TRI-215", "error", "in-flight batching needs a paged KV cache", TRTLLM_PARAMETERS)
@each_engine
def paged_cache(model: Model, engine: Engine) -> Iterator[Hit]:
    """Requests that come and go need blocks; an engine with a contiguous cache runs static batches only."""
    kind = str(engine.build.get("kv_cache_type", "PAGED")).upper().removeprefix("KVCACHETYPE.")
    contiguous = kind in ("CONTINUOUS", "DISABLED") or engine.plugins.get("paged_kv_cache") is False
    static = (model.parameter("gpt_model_type") or "").lower() == "v1"
    if contiguous and not static:
        yield hit(
            model,
            f"in-flight batching of an engine whose KV cache is {kind.lower() if kind != 'PAGED' else 'not paged'}",
            (
                _rebuilt("--kv_cache_type paged"),
                leaving(
                    parameter(model, "gpt_model_type", "V1", 'gpt_model_type: "V1", which batches statically'),
                    "TF-TRI-186",
                ),
            ),
            *at(model, "gpt_model_type"),
        )


@rule("TF-TRI-193", "error", "a limit above the engine's", thread("TB#115"))
@each_engine_model
def limits(model: Model, repository: Repository) -> Iterator[Hit]:
    """The engine was built for its limits; more is refused, at load or at the first such request."""
    engine = model.engine
    if engine is None:
        return
    width, built = number(model, "max_beam_width"), engine.limit("max_beam_width")
    if width is not None and built is not None and width > built:
        message = f"max_beam_width {width:g}, and the engine has {built}"
        remedies = [parameter(model, "max_beam_width", str(built)), _rebuilt(f"--max_beam_width {width:g}")]
        yield hit(model, message, remedies, *at(model, "max_beam_width"))
    batch, built = model.message.max_batch_size, engine.limit("max_batch_size")
    if built is not None and batch > built and model.knows("max_batch_size"):
        message = f"max_batch_size {batch}, and the engine runs {built} sequences at a time"
        remedies = [_batch(model, repository, built), _rebuilt(f"--max_batch_size {batch}")]
        yield hit(model, message, remedies, "max_batch_size", severity="warning")


@rule("TF-TRI-194", "warning", "the KV cache is too small for one full-length request", thread("TB#565"))
@each_engine
def cache_tokens(model: Model, engine: Engine) -> Iterator[Hit]:
    """A request that needs more blocks than there are is refused, however idle the server is."""
    tokens, length = number(model, "max_tokens_in_paged_kv_cache"), engine.limit("max_seq_len")
    width = number(model, "max_beam_width") or 1
    window = model.parameter("max_attention_window_size")
    if tokens is None or length is None or window is not None:
        return
    block = engine.plugins.get("tokens_per_block")
    size = block if isinstance(block, int) and block > 0 else 64
    needed = -(-length // size) * size * int(width)
    if tokens < needed:
        message = f"max_tokens_in_paged_kv_cache {tokens:g}, and one request of max_seq_len {length} needs {needed}"
        remedies = [
            parameter(
                model, "max_tokens_in_paged_kv_cache", str(needed), f'max_tokens_in_paged_kv_cache: "{needed}" or more'
            ),
            no_parameter(model, "max_tokens_in_paged_kv_cache"),
        ]
        yield hit(model, message, remedies, *at(model, "max_tokens_in_paged_kv_cache"))


@rule("TF-TRI-200", "error", "gpu_device_ids do not match the engine's ranks", thread("TL#2021"))
@each_engine
def ranks(model: Model, engine: Engine) -> Iterator[Hit]:
    """Every rank of tp × pp has a GPU of its own."""
    size = engine.world_size
    if size is not None:
        for found in device_faults(model, size):
            if "rank" in found.message:
                yield found


@rule("TF-TRI-211", "error", "LoRA weights of another type than the engine's", thread("TB#750"))
@each_engine
def lora_type(model: Model, engine: Engine) -> Iterator[Hit]:
    """The plugin reads the bytes as its own type: the adapter has no effect, or a wrong one, without an error."""
    from tritonclient.grpc import model_config_pb2 as pb

    plugin = engine.plugins.get("lora_plugin")
    if not plugin:
        sized = [n for n in ("lora_cache_max_adapter_size", "lora_prefetch_dir") if model.parameter(n) is not None]
        if sized and plugin is None and "lora_plugin" in engine.plugins:
            message = f"{sized[0]} is set, and the engine has no LoRA plugin"
            remedies = [no_parameter(model, sized[0]), _rebuilt("--lora_plugin auto")]
            yield hit(model, message, remedies, *at(model, sized[0]), severity="warning")
        return
    wanted = _DTYPES.get(str(plugin))
    for index, row in enumerate(model.message.input):
        if row.name == "lora_weights" and wanted and pb.DataType.Name(row.data_type) != wanted:
            if not model.knows("input", "data_type"):
                return
            message = f"lora_weights is {pb.DataType.Name(row.data_type)}, and the engine's lora_plugin is {plugin}"
            yield hit(model, message, here(wanted), "input", index, "data_type")


@rule("TF-TRI-214", "error", "the decoding mode does not match the engine", thread("TL#1449"))
@each_engine
def engine_speculation(model: Model, engine: Engine) -> Iterator[Hit]:
    """An engine is built for one way to speculate; another one has no heads or buffers in it."""
    built = engine.build.get("speculative_decoding_mode")
    mode = model.parameter("decoding_mode")
    if built is None or mode is None:
        return
    names = {1: "none", 2: "draft", 4: "medusa", 8: "lookahead", 16: "redrafter", 32: "eagle"}
    text = str(built).rsplit(".", 1)[-1].lower() if not isinstance(built, int) else names.get(built, "none")
    engine_mode = {"explicit_draft_tokens": "redrafter", "lookahead_decoding": "lookahead"}.get(text, text)
    if mode in ("medusa", "redrafter", "lookahead", "eagle") and engine_mode != mode:
        yield hit(
            model,
            f"decoding_mode {mode}, and the engine was built for {engine_mode}",
            (no_parameter(model, "decoding_mode", "no decoding_mode"), person(f"an engine that was built for {mode}")),
            *at(model, "decoding_mode"),
        )


@rule("TF-TRI-210", "error", "logits are declared in another type than the engine's", TRTLLM_PARAMETERS)
@each_model
def logits_type(model: Model, repository: Repository) -> Iterator[Hit]:
    """Triton copies the bytes of the logits into a tensor of the declared type."""
    from tritonclient.grpc import model_config_pb2 as pb

    engine = model.engine if "gpt_model_type" in model.message.parameters else None
    stated = engine.pretrained.get("logits_dtype") if engine is not None else None
    wanted = _DTYPES.get(str(stated))
    if wanted is None or not model.knows("output", "data_type"):
        return
    for index, row in enumerate(model.message.output):
        if row.name in ("context_logits", "generation_logits") and pb.DataType.Name(row.data_type) != wanted:
            message = f"{row.name} is {pb.DataType.Name(row.data_type)}, and the engine's logits are {stated}"
            remedy = together(
                *_in_every(repository, row.name, wanted), text=f"data_type: {wanted} in every model that has it"
            )
            yield hit(model, message, remedy, "output", index, "data_type")
