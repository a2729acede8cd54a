"""From a recipe and the hardware to the facts that every section reads.

Policy: what the recipe writes is planned as written; where it leaves the split open, the split follows the goal.
An assumption (lengths of requests, a draft whose sizes are not here) becomes a note of the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.planner import workload as workloads
from builder.planner.hardware import Gpu, link
from builder.planner.memory import plan_memory
from builder.planner.model import from_config, read_config
from builder.planner.parallelism import Split, invalid_reasons, recommend, splits
from builder.planner.precision import recipe_precision, weight_format
from builder.planner.types import Beside, Facts, Goal, ParallelPlan, Precision, Serving, Workload, bad_input
from builder.planner.weights import TensorGroup, groups_from_facts, groups_from_headers, in_precision
from trtforge.formats.mixing import named_format
from trtforge.ground.safetensors_header import read_headers, weight_files
from trtforge.models.record import Model
from trtforge.recipe.kv_windows import kv_windows
from trtforge.recipe.schema import Recipe
from trtforge.tables import architecture_table
from trtforge.targets import DEFAULT, names

QUANT_CONFIG = "hf_quant_config.json"


@dataclass(frozen=True)
class KnownModel:
    """A model and its tensors as they are stored; ``measured`` is whether the tensors come from real headers."""

    facts: Model
    groups: Sequence[TensorGroup]
    measured: bool


def model_from_folder(folder: Path, name: str = "") -> KnownModel:
    """A checkpoint folder: sizes from ``config.json``, tensors from its safetensors headers when it has any.

    Raises:
        ForgeError: ``TF-PLN-004`` the configuration; ``TF-SRC-…`` damaged or missing weight files.
    """
    quant = folder / QUANT_CONFIG
    facts = from_config(read_config(folder), name or folder.name, read_config(quant) if quant.is_file() else None)
    if not weight_files(folder):
        return KnownModel(facts, groups_from_facts(facts), False)
    return KnownModel(facts, groups_from_headers(read_headers(folder), facts), True)


def model_from_config(path: Path, name: str = "") -> KnownModel:
    """A bare ``config.json`` (or the folder that holds it), with ``hf_quant_config.json`` beside it if there is one.

    Raises:
        ForgeError: ``TF-PLN-004`` it is missing, no JSON, or lacks a size.
    """
    folder = path if path.is_dir() else path.parent
    quant = folder / QUANT_CONFIG
    facts = from_config(read_config(path), name, read_config(quant) if quant.is_file() else None)
    return KnownModel(facts, groups_from_facts(facts), False)


def model_from_record(model: Model, name: str = "") -> KnownModel:
    """Intake's record: its sizes say which tensors the checkpoint will have."""
    # a GGUF file's type is that of no engine, and a plan has the recipe's in any case
    facts = replace(model, name=name or model.architecture, dtype="bfloat16")
    return KnownModel(facts, groups_from_facts(facts), False)


def served_precision(recipe: Recipe, model: Model) -> Precision:
    """The recipe's precision; a checkpoint that is quantized already keeps its own."""
    quantize = recipe.quantize
    precision = recipe_precision(
        quantize.format,
        quantize.kv_cache,
        recipe.model.dtype,
        group_size=quantize.group_size,
        exclude=quantize.unquantized,
    )
    if quantize.mixed:
        named = ((*named_format(text), tuple(patterns)) for text, patterns in quantize.mixed.items())
        mixed = tuple((weight_format(row.name).name, size, patterns) for row, size, patterns in named)
        precision = replace(precision, mixed=mixed)
    if model.prequantized:
        precision = replace(precision, weights=model.prequantized, exclude=(*precision.exclude, *model.unquantized))
    if model.prequantized_kv_cache and quantize.kv_cache == "none":
        precision = replace(precision, kv=model.prequantized_kv_cache)
    return precision


def stored_notes(recipe: Recipe, model: Model) -> list[str]:
    """What a plan says of formats: of several ones, and of a checkpoint that is quantized already."""
    asked = recipe.quantize.format
    if model.prequantized is None and recipe.quantize.mixed:
        others = ", ".join(recipe.quantize.mixed)
        return [f"bytes are those of each linear's own format; times count the linears in {others} as {asked}"]
    if model.prequantized is None or asked in ("none", model.prequantized):
        return []
    return [
        f"the checkpoint is stored in {model.prequantized} and planned so: quantize.format: {asked} is not done to it; "
        "write quantize.format: none"
    ]


def kernel_notes(precision: Precision, gpu: Gpu, target: str = DEFAULT.name) -> list[str]:
    """What the architecture table says against a format or a target on this GPU; the plan's bytes hold either way."""
    row = architecture_table().row(gpu.arch)
    notes: list[str] = []
    if row is None:
        return notes
    if target not in row.targets:
        notes.append(f"target {target} does not build for {gpu.arch} ({row.title}): it has {', '.join(row.targets)}")
    for kind, name, table in (("weights", precision.weights, row.formats), ("KV cache", precision.kv, row.kv_cache)):
        support = table.get(name, "yes")
        if support == "no":
            notes.append(f"TensorRT-LLM has no kernel for {name} {kind} on {gpu.arch} ({row.title})")
        elif support != "yes":
            notes.append(f"{name} {kind} on {gpu.arch} ({row.title}): {support}")
    return notes


def served_limits(recipe: Recipe, model: Model) -> Serving:
    """Limits, pool, draft tokens and windows of the recipe; without a pool TensorRT-LLM's 0.9 of free memory."""
    limits, cache, speculation = recipe.build.limits, recipe.build.kv_cache, recipe.speculation
    drafts = (speculation.max_draft_len or 4) if speculation.method != "none" else 0
    if speculation.choices:
        drafts = len(speculation.choices)
    elif speculation.dynamic_tree is not None:
        drafts = speculation.dynamic_tree.total
    return Serving(
        limits.max_batch_size,
        limits.max_num_tokens,
        limits.max_seq_len,
        cache.block_size,
        cache.memory,
        cache.free_fraction or 0.9,
        drafts,
        kv_windows(recipe, model),
        # a draft's graph keeps keys and values in the target's element type, whatever the target's cache has
        recipe.model.dtype if recipe.target.one_rank and speculation.draft else None,
    )


def default_workload(recipe: Recipe, model: Model) -> Workload:
    """Without lengths: a quarter of max_seq_len is the answer, the rest the prompt, inside the model's context."""
    whole = min(recipe.build.limits.max_seq_len, model.usable_positions)
    osl = max(whole // 4, 1)
    return workloads.fixed(max(whole - osl, 1), osl)


def collect(
    recipe: Recipe,
    known: KnownModel,
    gpu: Gpu,
    count: int,
    *,
    workload: Workload | None = None,
    goal: Goal = "throughput",
    network: str = "ib-ndr",
    parallel: ParallelPlan | None = None,
    draft: KnownModel | None = None,
    options: Mapping[str, Any] | None = None,
    reserved: int = 0,
    pool_bytes: int | None = None,
) -> Facts:
    """The facts of a plan.

    Args:
        parallel: the split that must be used; None chooses by ``goal``.
        draft: the draft model of the recipe's speculation, when its sizes are known.
        reserved: bytes of each GPU that other models hold.
        pool_bytes: the KV pool of each GPU, in place of the recipe's.

    Raises:
        ForgeError: ``TF-PLN-002`` unknown network, ``TF-PLN-003`` unknown format, ``TF-PLN-008`` no GPUs,
            ``TF-PLN-013`` a split that the model or the count does not allow; ``TF-PLN-014`` requests that are
            longer than the model's context.
    """
    link(network)
    precision = served_precision(recipe, known.facts)
    weights = in_precision(known.groups, precision)
    beside = Beside(reserved=reserved)
    if draft is not None:
        # a draft stays in the recipe's dtype: the quantize section is the target's
        beside = Beside(draft.facts, in_precision(draft.groups, replace(precision, weights=precision.base)), reserved)
    serving = served_limits(recipe, known.facts)
    if pool_bytes is not None:
        serving = replace(serving, pool_bytes=pool_bytes)
    notes = [*known.facts.assumed, *stored_notes(recipe, known.facts)]
    notes += kernel_notes(precision, gpu, recipe.build.target)
    notes += [f"draft: {text}" for text in draft.facts.assumed] if draft else []
    notes += [] if known.measured else ["weights follow from the model's sizes; no safetensors headers were read"]
    if workload is None:
        workload = default_workload(recipe, known.facts)
        only = workload.lengths[0]
        notes.append(f"lengths are assumed from max_seq_len: {only.isl:,} prompt and {only.osl:,} answer tokens")
    _check_context(known.facts, workload)
    notes += _prefix_notes(recipe, workload)
    if reserved:
        notes.append("times are those of GPUs whose other models have nothing to do at the moment")
    if recipe.speculation.draft and draft is None:
        notes.append("the draft's sizes are not known here; its memory is not counted")
    found = splits(known.facts, weights, precision, serving, gpu, count, workload, network=network, beside=beside)
    chosen, why = _choose(known.facts, precision, parallel, count, found, goal)
    if chosen.gpus > 1 and recipe.target.one_rank:
        targets = " or ".join(names(lambda target: not target.one_rank))
        notes.append(f"build.target: {recipe.build.target} runs one rank: {chosen} needs build.target: {targets}")
    memory = plan_memory(known.facts, weights, precision, chosen, serving, gpu, beside)
    return Facts(
        model=known.facts,
        weights=weights,
        precision=precision,
        gpu=gpu,
        count=count,
        parallel=chosen,
        serving=serving,
        workload=workload,
        goal=goal,
        network=network,
        beside=beside,
        memory=memory,
        splits=found,
        chosen=why,
        recipe=recipe,
        notes=tuple(notes),
        options=dict(options or {}),
    )


def _check_context(model: Model, workload: Workload) -> None:
    longest, most = workload.longest, model.usable_positions
    if longest <= most:
        return
    over = sum(item.share for item in workload.lengths if item.isl + item.osl > most)
    raise bad_input(
        "TF-PLN-014",
        f"requests of up to {longest:,} tokens exceed the {most:,} positions of {model.name}",
        asked=f"prompt and answer of {longest:,} tokens",
        why=f"The model has no position for the tokens beyond; {over:.1%} of the requests are too long.",
        remedies=[
            f"prompts and answers of at most {most:,} tokens together (--isl, --osl, --lengths, --trace)",
            "a model with a longer context, or with rope scaling in its config.json",
        ],
        longest=longest,
        positions=most,
        share_too_long=over,
    )


def _prefix_notes(recipe: Recipe, workload: Workload) -> list[str]:
    if not workload.shared_prefix or not recipe.target.tensorrt_llm or recipe.build.trtllm.kv_reuse:
        return []
    return [
        "the figures count with a prefix cache, which the recipe leaves off: --set build.trtllm.kv_reuse=true "
        "(the other targets' runtime always has one)"
    ]


def _choose(
    model: Model, precision: Precision, asked: ParallelPlan | None, count: int, found: Sequence[Split], goal: Goal
) -> tuple[ParallelPlan, str]:
    if asked is not None:
        reasons = invalid_reasons(model, precision, asked, count)
        if reasons:
            raise _invalid(asked, count, reasons, found)
        return asked, "as the recipe's build.parallel says"
    best = recommend(found, goal)
    if best is not None:
        return best[0].parallel, best[1]
    valid = [split.parallel for split in found if split.valid]
    if not valid:
        raise _invalid(ParallelPlan(count, 1, 1), count, ["no split of the model uses these GPUs"], found)
    # nothing fits: the split that spreads the model widest shows how far it is
    widest = max(valid, key=lambda split: (split.gpus, split.tp))
    return widest, "no split fits; this one spreads the model over the most GPUs"


def _invalid(asked: ParallelPlan, count: int, reasons: Sequence[str], found: Sequence[Split]) -> Exception:
    works = [split.parallel for split in found if split.valid]
    near = sorted(works, key=lambda split: (abs(split.gpus - asked.gpus), abs(split.tp - asked.tp)))[:3]
    return bad_input(
        "TF-PLN-013",
        f"{asked} on {count} GPUs is not possible: {'; '.join(reasons)}",
        asked=json.dumps({"tp": asked.tp, "pp": asked.pp, "ep": asked.ep}),
        why="Every rank holds a whole part of the heads, the MLP and the experts, and replicas are alike.",
        remedies=[f"build.parallel: {{tp: {s.tp}, pp: {s.pp}, ep: {s.ep}}}" for s in near] or ["another --count"],
        reasons=list(reasons),
        valid=[str(split) for split in works],
    )
