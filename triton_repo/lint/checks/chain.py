"""Rules across the TensorRT-LLM models of one repository: flags, sizes, names and memory that must agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from triton_repo.lint.engine_models import at
from triton_repo.lint.files import there
from triton_repo.lint.hits import TRTLLM_PARAMETERS, Hit, hit, listed, rule
from triton_repo.lint.remedies import Remedy, here, leaving, no_parameter, parameter, person, put, together
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.roles import DEFAULT_FRACTION, Chain, chain, device_sets, flag, number
from trtforge.ground.names import nearest
from trtforge.ground.paths import real_path
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(90, "Across TensorRT-LLM's models")


def each_chain(check: Callable[[Chain, Repository], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
    """A check of the repository's TensorRT-LLM models together."""

    def checked(repository: Repository) -> Iterable[Hit]:
        models = chain(repository)
        if models.engines:
            yield from check(models, repository)

    return functools.wraps(check)(checked)


def _decoupled(model: Model) -> bool:
    return bool(model.message.model_transaction_policy.decoupled)


def _asked(models: Chain, bls: Model) -> list[Model]:
    """The engine models that a BLS model asks."""
    names = [bls.parameter("tensorrt_llm_model_name") or "tensorrt_llm"]
    return [engine for engine in models.engines if engine.name in names]


@rule("TF-TRI-203", "error", "decoupled flags differ between models that hand a stream on", thread("TB#34"))
@each_chain
def decoupled(models: Chain, repository: Repository) -> Iterator[Hit]:
    """A stream is only a stream when every model in it is decoupled: a BLS model that is and an engine that is not (or
    the other way round) gives one answer or an error."""
    for bls in models.bls:
        for engine in _asked(models, bls):
            known = bls.knows("model_transaction_policy", "decoupled") and engine.knows(
                "model_transaction_policy", "decoupled"
            )
            if known and _decoupled(bls) != _decoupled(engine):
                wanted = str(_decoupled(engine)).lower()
                message = f"decoupled is {str(_decoupled(bls)).lower()} here and {wanted} in {engine.name}"
                remedies = [
                    here(wanted, f"decoupled: {wanted} here"),
                    put(
                        engine,
                        str(_decoupled(bls)).lower(),
                        "model_transaction_policy",
                        "decoupled",
                        text=f"{str(_decoupled(bls)).lower()} in {engine.name}",
                    ),
                ]
                yield hit(bls, message, remedies, "model_transaction_policy", "decoupled")


@rule("TF-TRI-204", "warning", "batch sizes differ between the models of one chain", thread("TB#189"))
@each_chain
def batch_sizes(models: Chain, repository: Repository) -> Iterator[Hit]:
    """A request goes through all of them whole, so the smallest one is the limit that clients meet."""
    parts = [m for m in (*models.preprocessing, *models.postprocessing, *models.bls) if m.knows("max_batch_size")]
    if len(models.engines) != 1 or not models.engines[0].knows("max_batch_size"):
        return
    engine = models.engines[0]
    size = engine.message.max_batch_size
    for model in parts:
        other = model.message.max_batch_size
        if other != size:
            in_engine = put(engine, str(other), "max_batch_size", text=f"max_batch_size: {other} in {engine.name}")
            remedy = here(str(size)) if size else in_engine
            yield hit(model, f"max_batch_size is {other} here and {size} in {engine.name}", remedy, "max_batch_size")


@rule("TF-TRI-205", "error", "a BLS model asks a model that is not there", TRTLLM_PARAMETERS)
def bls_names(repository: Repository) -> Iterator[Hit]:
    """The name is looked up when a request comes; until then nothing tells."""
    models = chain(repository)
    broken = {problem.path.name for problem in repository.problems}
    for bls in models.bls:
        for name in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name", "multimodal_encoders_name"):
            stated = bls.parameter(name)
            if stated is not None and repository.get(stated) is None and stated not in broken:
                near = nearest(stated, repository.models)
                yield hit(
                    bls,
                    f"{name}: there is no model {stated!r}",
                    parameter(bls, name, near)
                    if near
                    else (no_parameter(bls, name), person("one of " + listed(repository.models))),
                    *at(bls, name),
                )
        needed = ["preprocessing", "postprocessing"] if bls.code is not None else []
        if bls.parameter("tensorrt_llm_model_name") is None:
            needed.append("tensorrt_llm")
        for name in needed:
            asked = bls.code is not None and (f'"{name}"' in bls.code or f"'{name}'" in bls.code)
            if asked and repository.get(name) is None and name not in broken:
                yield hit(bls, f"it asks {name!r}, and there is no such model", person(f"a folder {name}/"), "name")


@rule("TF-TRI-216", "warning", "accumulated tokens and beams", thread("TB#513"))
@each_chain
def accumulated_beams(models: Chain, repository: Repository) -> Iterator[Hit]:
    """NVIDIA's BLS model keeps the tokens of a stream for one beam only: requests with more are refused."""
    beams = {engine.name: number(engine, "max_beam_width") or 1 for engine in models.engines}
    for bls in models.bls:
        asked = bls.parameter("tensorrt_llm_model_name") or "tensorrt_llm"
        ours = "max_beam_width" in bls.message.parameters  # which keeps beams apart
        if flag(bls, "accumulate_tokens") and beams.get(asked, 1) > 1 and not ours:
            message = f"accumulate_tokens, and {asked} offers {beams[asked]:g} beams"
            remedies = [
                leaving(
                    parameter(
                        bls,
                        "accumulate_tokens",
                        "false",
                        'accumulate_tokens: "false"'
                        + (", and a stream is decoded token by token" if _decoupled(bls) else ""),
                    ),
                    *(("TF-TRI-206",) if _decoupled(bls) else ()),
                ),
                *(_one_beam(engine) for engine in models.engines if engine.name == asked),
            ]
            yield hit(bls, message, remedies, *at(bls, "accumulate_tokens"))


def _one_beam(engine: Model) -> Remedy:
    """One beam, and no decoding mode that is of several."""
    edits = parameter(engine, "max_beam_width", "1").edits
    if engine.parameter("decoding_mode") == "beam_search":
        edits += no_parameter(engine, "decoding_mode").edits
    return Remedy(f'max_beam_width: "1" in {engine.name}', edits)


def _count(model: Model, count: int) -> Remedy:
    """As many instances, in the group that there is or in a new one."""
    if not model.message.instance_group:
        return put(model, f"{{ count: {count} kind: KIND_CPU }}", "instance_group")
    return put(model, str(count), "instance_group", 0, "count")


@rule("TF-TRI-206", "note", "text of a stream is decoded token by token", thread("TB#332"))
@each_chain
def token_by_token(models: Chain, repository: Repository) -> Iterator[Hit]:
    """A tokenizer may need its neighbours to write a space or a character: decoded alone, pieces lose them. A BLS model
    with accumulate_tokens keeps the tokens of a stream (beam width 1 only)."""
    for bls in models.bls:
        if _decoupled(bls) and flag(bls, "accumulate_tokens") is not True:
            yield hit(
                bls,
                "decoupled without accumulate_tokens",
                parameter(bls, "accumulate_tokens", "true"),
                *(at(bls, "accumulate_tokens") if "accumulate_tokens" in bls.message.parameters else ("name",)),
            )
    engines = {engine.name for engine in models.engines if _decoupled(engine)}
    posts = {model.name for model in models.postprocessing}
    for model in repository.models.values():
        if model.is_ensemble and not models.bls:
            names = {step.model_name for step in model.message.ensemble_scheduling.step}
            if names & engines and names & posts:
                message = f"a stream of {listed(names & engines)} goes through {listed(names & posts)} piece by piece"
                remedy = person("a tensorrt_llm_bls model with accumulate_tokens for streaming clients")
                yield hit(model, message, remedy, "name")


@rule("TF-TRI-207", "note", "one tokenizer feeds the engine", thread("TB#532"))
@each_chain
def one_tokenizer(models: Chain, repository: Repository) -> Iterator[Hit]:
    """Pre- and postprocessing run on one CPU thread an instance; with one of them a batch of requests waits in line
    before the engine sees it. NVIDIA's advice is about 5, or as many as the batch size."""
    for model in (*models.preprocessing, *models.postprocessing):
        count = sum(max(group.count, 1) for group in model.message.instance_group) or 1
        size = model.message.max_batch_size
        if count == 1 and size >= 8 and model.knows("instance_group", "count"):
            yield hit(model, f"1 instance for batches of {size}", _count(model, min(size, 5)), "instance_group")
    for bls in models.bls:
        count = sum(max(group.count, 1) for group in bls.message.instance_group) or 1
        size = bls.message.max_batch_size
        if count == 1 and size >= 8 and not _decoupled(bls) and bls.knows("instance_group", "count"):
            yield hit(
                bls, f"1 BLS instance: requests of a batch of {size} go one by one", _count(bls, size), "instance_group"
            )


@rule("TF-TRI-208", "error", "the models of one chain have different tokenizers", thread("TB#197"))
@each_chain
def tokenizers(models: Chain, repository: Repository) -> Iterator[Hit]:
    """Ids of one tokenizer are words of another: the answer is nonsense, without an error."""
    if len(models.preprocessing) != 1 or len(models.postprocessing) != 1:
        return
    pre, post = models.preprocessing[0], models.postprocessing[0]
    one, other = pre.parameter("tokenizer_dir"), post.parameter("tokenizer_dir")
    if one is None or other is None:
        return
    if one.rstrip("/") != other.rstrip("/"):
        here, there = pre.here(one), post.here(other)
        if here is not None and there is not None and real_path(here) == real_path(there):
            return
        yield hit(
            post,
            f"tokenizer_dir {other!r} here and {one!r} in {pre.name}",
            (parameter(post, "tokenizer_dir", one), parameter(pre, "tokenizer_dir", other, f'"{other}" in {pre.name}')),
            *at(post, "tokenizer_dir"),
        )


@rule("TF-TRI-213", "error", "a tokenizer's folder has no tokenizer", thread("TB#109"))
@each_chain
def tokenizer_files(models: Chain, repository: Repository) -> Iterator[Hit]:
    """The folder is there and none of the files that a tokenizer is loaded from are in it."""
    files = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model")
    for model in (*models.preprocessing, *models.postprocessing):
        stated = model.parameter("tokenizer_dir")
        folder = model.here(stated) if stated is not None else None
        if folder is None:
            continue
        if folder.is_file():
            yield hit(model, f"tokenizer_dir {stated!r} is a file", person("its folder"), *at(model, "tokenizer_dir"))
        elif not any(there(folder / name) for name in files):
            message = f"tokenizer_dir {stated!r} has none of {', '.join(files[:3])}"
            yield hit(model, message, person("the checkpoint's folder"), *at(model, "tokenizer_dir"))


def _gpus(model: Model) -> set[int] | None:
    """The GPUs of an engine model; None when it may use all."""
    text = model.parameter("gpu_device_ids")
    sets = device_sets(text) if text is not None else None
    return {device for group in sets for device in group} if sets else None


@rule("TF-TRI-198", "warning", "several engines take a share of the same free memory", thread("TB#456"))
@each_chain
def shared_gpu(models: Chain, repository: Repository) -> Iterator[Hit]:
    """kv_cache_free_gpu_mem_fraction is a share of what is free when the model loads: the first takes most, and what
    the second gets depends on the order of loading."""
    free = [m for m in models.engines if m.parameter("max_tokens_in_paged_kv_cache") is None]
    for index, model in enumerate(free):
        together_with = [
            other
            for other in free
            if other is not model and (_gpus(model) is None or _gpus(other) is None or _gpus(model) & _gpus(other))  # type: ignore[operator]
        ]
        before = [other for other in together_with if other in free[:index]]
        if not before:
            continue
        shares = {m.name: _share(m) for m in (*before, model)}
        count = len(together_with) + 1
        left = 1.0
        for other in before:
            left *= 1 - shares[other.name]
        # fractions that share evenly when each is taken of the rest add up to more than 1
        if sum(shares.values()) <= 1.0 or shares[model.name] * left >= DEFAULT_FRACTION / count / 2:
            continue
        yield hit(
            model,
            f"{listed(shares)} share a GPU and take "
            + ", ".join(f"{share:g}" for share in shares.values())
            + f" of what is free: at most {shares[model.name] * left:.0%} of the GPU is left for {model.name}",
            (
                together(
                    *(
                        parameter(m, "kv_cache_free_gpu_mem_fraction", f"{_part(count, i):.2f}")
                        for i, m in enumerate(sorted((model, *together_with), key=lambda m: m.name))
                    ),
                    text="fractions that add up to 0.9 when each is taken of the rest "
                    f"({', '.join(f'{_part(count, i):.2f}' for i in range(count))} in the order of loading)",
                ),
                person("max_tokens_in_paged_kv_cache in each"),
            ),
            *(
                at(model, "kv_cache_free_gpu_mem_fraction")
                if "kv_cache_free_gpu_mem_fraction" in model.message.parameters
                else ("name",)
            ),
        )


def _share(model: Model) -> float:
    stated = number(model, "kv_cache_free_gpu_mem_fraction")
    return stated if stated is not None else DEFAULT_FRACTION


def _part(count: int, index: int) -> float:
    """The fraction of the rest that gives each of ``count`` models the same part of 0.9 of the free memory."""
    part = DEFAULT_FRACTION / count
    return part / (1 - part * index)
