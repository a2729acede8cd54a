"""K3: a precision needs a kernel on the target and the architecture."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.formats.table import FormatRow, refused_formats
from trtforge.ground.names import nearest
from trtforge.models.shape import quantized_linears
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import (
    context_asked,
    fp8_context_attention,
    kv_asked,
    kv_format,
    other_context,
    other_kv,
    other_weights,
    weight_format,
    weights_asked,
)
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import for_architectures, to_format, to_target
from trtforge.rules.sources import RTX_SUPPORT, thread
from trtforge.tables import Architecture
from trtforge.targets import DEFAULT, TARGETS

_MATRIX = "https://nvidia.github.io/TensorRT-LLM/features/quantization.html"


def _hosts(facts: Facts, hosts: list[Architecture]) -> list[str]:
    """Of the architectures in question those that have the recipe's type, weights and KV cache; else all of them."""
    recipe = facts.recipe
    fitting = [
        row.name
        for row in hosts
        if row.dtypes.get(recipe.model.dtype) != "no"
        and row.support(weight_format(facts), recipe.build.target) not in ("no", "weight-only")
        and row.kv_cache.get(kv_format(facts)) not in ("no", "disputed")
    ]
    return fitting or [row.name for row in hosts]


@rule("TF-K3-001", "unknown quantization format", needs=("format",), waivable=False)
def unknown_format(facts: Facts) -> Iterator[Violation]:
    """A format is a row of the format table; without one nothing says how to quantize, export or run it."""
    name = facts.recipe.quantize.format
    if name in facts.formats or name in refused_formats():
        return
    near = nearest(name, list(facts.formats))
    yield Violation(
        f"quantize.format: {name} is no row of the format table",
        facts.asked("quantize.format"),
        {"known": list(facts.formats)},
        [to_format(facts, name) for name in ([near] if near else facts.formats)],
    )


@rule("TF-K3-002", "no kernel for the format on the architecture", _MATRIX, needs=("format", "build.architectures"))
def format_on_architecture(facts: Facts) -> Iterator[Violation]:
    """Without a kernel the engine either fails to build or silently runs another precision."""
    name, target = weight_format(facts), facts.recipe.build.target
    if not facts.target.needs_gpu or name not in facts.formats:
        return
    for row in facts.target_rows:
        support = row.support(name, target)
        if support in ("no", "weight-only") or (support is None and row.name not in facts.formats[name].native):
            works = [other for other in facts.formats if row.support(other, target) == "yes" and other != "none"]
            hosts = _hosts(
                facts,
                [
                    item
                    for item in facts.architectures.rows
                    if item.support(name, target) == "yes" and target in item.targets
                ],
            )
            stated = " beyond weight-only" if support == "weight-only" else ""
            yield Violation(
                f"{name} has no kernel{stated} on {row.name} ({row.title}) for {target}",
                f"{weights_asked(facts)}, build.architectures: {row.name}",
                {"works_on": hosts, "formats_here": works, "support": support or "not stated"},
                [*other_weights(facts, works), *for_architectures(facts, row.name, hosts)],
            )


@rule(
    "TF-K3-003",
    "no kernel for the KV-cache format on the architecture",
    thread("TL#222"),
    needs=("build.architectures",),
)
def kv_on_architecture(facts: Facts) -> Iterator[Violation]:
    """The attention kernel of that architecture cannot read this cache."""
    mode = kv_format(facts)
    if not facts.target.needs_gpu:
        return
    for row in facts.target_rows:
        if row.kv_cache.get(mode) in ("no", "disputed"):
            stated = (
                "listed by the matrix but contradicted by reports" if row.kv_cache[mode] == "disputed" else "missing"
            )
            hosts = _hosts(facts, [item for item in facts.architectures.rows if item.kv_cache.get(mode) == "yes"])
            yield Violation(
                f"KV cache {mode} on {row.name} ({row.title}) is {stated}",
                f"{kv_asked(facts)}, build.architectures: {row.name}",
                {"support": row.kv_cache[mode], "works_on": hosts},
                [*other_kv(facts), *for_architectures(facts, row.name, hosts)],
            )


@rule("TF-K3-004", "unknown GPU architecture", _MATRIX)
def unknown_architecture(facts: Facts) -> Iterator[Violation]:
    """The tables say nothing about it, so nothing could be promised about kernels."""
    known = [row.name for row in facts.architectures.rows]
    for architecture in facts.recipe.build.architectures:
        if architecture not in known:
            near = nearest(architecture, known)
            corrected = [near if name == architecture else name for name in facts.recipe.build.architectures]
            yield Violation(
                f"build.architectures: {architecture} is not in the table",
                f"build.architectures: {architecture}",
                {"known": known},
                [
                    *([line("build.architectures", corrected)] if near else []),
                    *by_hand(f"one or more of {', '.join(known)} in build.architectures"),
                ],
            )


@rule("TF-K3-005", "KV-cache format that no engine here reads", waivable=False)
def kv_mode_supported(facts: Facts) -> Iterator[Violation]:
    """The paged pool must hold the format that the attention reads."""
    mode = facts.recipe.quantize.kv_cache
    row = facts.kv_modes.get(mode)
    if row is not None and not row.supported:
        usable = [name for name, other in facts.kv_modes.items() if other.supported]
        yield Violation(
            f"KV cache {mode} cannot be served",
            facts.asked("quantize.kv_cache"),
            {"usable": usable},
            [f"quantize.kv_cache: {other}" for other in usable if other != "none"] + ["quantize.kv_cache: none"],
            why=row.why,
        )


@rule("TF-K3-006", "quantizing a checkpoint that is quantized already", needs=("model",), waivable=False)
def already_quantized(facts: Facts) -> Iterator[Violation]:
    """Its high-precision weights are gone; a second rounding adds error and the scales of the first are lost."""
    model, quantize = facts.require_model(), facts.recipe.quantize
    if model.prequantized and (quantize.format != "none" or quantize.kv_cache != "none"):
        yield Violation(
            f"the checkpoint holds {model.prequantized} weights already",
            f"quantize: {{format: {quantize.format}, kv_cache: {quantize.kv_cache}}}, "
            f"model.source: {facts.recipe.model.source}",
            {"stored": model.prequantized},
            [
                "quantize.format: none with quantize.kv_cache: none",
                *by_hand("give the unquantized checkpoint as source"),
            ],
        )


@rule("TF-K3-007", "GPU architectures given to a target that does not compile for one", severity="warning")
def architectures_without_effect(facts: Facts) -> Iterator[Violation]:
    """The torch target runs the same engine directory on whatever machine loads it."""
    build = facts.recipe.build
    if not facts.target.needs_gpu and build.architectures:
        yield Violation(
            f"build.architectures has no effect on target {build.target}",
            facts.asked("build.architectures"),
            {},
            ["remove build.architectures"],
        )


@rule("TF-K3-008", "a target that does not build for the architecture", RTX_SUPPORT, needs=("build.architectures",))
def target_on_architecture(facts: Facts) -> Iterator[Violation]:
    """The compiler has no code for it: the build fails, or the engine never loads."""
    target = facts.recipe.build.target
    for row in facts.target_rows:
        if target not in row.targets:
            hosts = _hosts(facts, [item for item in facts.architectures.rows if target in item.targets])
            yield Violation(
                f"target {target} does not build for {row.name} ({row.title})",
                f"build.target: {target}, build.architectures: {row.name}",
                {"architectures_of_target": hosts, "targets_here": list(row.targets)},
                [
                    *for_architectures(facts, row.name, hosts),
                    *(to_target(facts, name) for name in row.targets if TARGETS[name].needs_gpu),
                ],
            )


@rule("TF-K3-009", "an engine for another GPU than the one here", thread("TL#222"), needs=("machine",))
def built_where_it_runs(facts: Facts) -> Iterator[Violation]:
    """The builder times kernels on the GPU that it finds: an engine of one architecture is refused on another."""
    build, here = facts.recipe.build, facts.require_machine().architectures
    if facts.target.built_for != "this-gpu" or not here:
        return
    other = [name for name in build.architectures if name not in here]
    if other:
        yield Violation(
            f"the engine is for {', '.join(other)}, the GPUs here are {', '.join(here)}",
            facts.asked("build.architectures"),
            {"asked": list(build.architectures), "here": list(here)},
            [
                *(line("build.architectures", [name]) for name in here),
                *by_hand(
                    f"build on a machine with {', '.join(other)}", "waive this when only the scripts are written here"
                ),
            ],
        )


@rule("TF-K3-010", "one engine for several architectures", thread("TL#222"), waivable=False)
def one_architecture(facts: Facts) -> Iterator[Violation]:
    """The target compiles an engine for one architecture; each other one needs a build of its own."""
    build = facts.recipe.build
    if facts.target.built_for == "this-gpu" and len(set(build.architectures)) > 1:
        yield Violation(
            f"target {build.target} builds for one architecture, the recipe names {len(set(build.architectures))}",
            facts.asked("build.architectures"),
            {"architectures": list(build.architectures)},
            [
                *(f"build.architectures: [{name}]" for name in build.architectures),
                *by_hand("a recipe for each, with extends: this one"),
            ],
        )


@rule("TF-K3-011", "FP8 context attention without a kernel", thread("TL#1864"), needs=("build.architectures",))
def fp8_attention_on_architecture(facts: Facts) -> Iterator[Violation]:
    """The fused attention over FP8 keys exists on some architectures only; elsewhere the build stops or falls back."""
    if not facts.target.trtllm_build or not fp8_context_attention(facts):
        return
    for row in facts.target_rows:
        if row.context_fp8 in ("no", "disputed"):
            hosts = [item.name for item in facts.architectures.rows if item.context_fp8 == "yes"]
            stated = "said to work and reported not to" if row.context_fp8 == "disputed" else "missing"
            yield Violation(
                f"FP8 context attention on {row.name} ({row.title}) is {stated}",
                f"{context_asked(facts)}, build.architectures: {row.name}",
                {"support": row.context_fp8, "works_on": hosts},
                [*other_context(facts), *for_architectures(facts, row.name, hosts)],
            )


@rule("TF-K3-012", "a dtype that the architecture does not compute in", RTX_SUPPORT, needs=("build.architectures",))
def dtype_on_architecture(facts: Facts) -> Iterator[Violation]:
    """Without matrix units for the type the engine fails to build or crawls."""
    dtype = facts.recipe.model.dtype
    if not facts.target.needs_gpu:
        return
    for row in facts.target_rows:
        if row.dtypes.get(dtype) == "no":
            works = [name for name, support in row.dtypes.items() if support == "yes"]
            if facts.target.runtime == "rtx" and row.name == "sm_75":
                works.remove("float32")  # TF-K3-021
            yield Violation(
                f"{row.name} ({row.title}) does not compute in {dtype}",
                f"model.dtype: {dtype}, build.architectures: {row.name}",
                {"dtypes_here": works},
                [f"model.dtype: {name}" for name in reversed(works)],
            )


@rule("TF-K3-013", "a format that the target does not take", needs=("format",), waivable=False)
def format_on_target(facts: Facts) -> Iterator[Violation]:
    """Nothing on the way to this target reads or computes linears that are stored so."""
    name, target = weight_format(facts), facts.recipe.build.target
    row = facts.formats.get(name)
    if row is None or target not in row.not_on:
        return
    others = [other for other, own in facts.formats.items() if target not in own.not_on and _computed(facts, own)]
    like = sorted(others, key=lambda other: _bits(facts.formats[other]) != _bits(row))
    yield Violation(
        f"target {target} does not take {name}",
        f"{weights_asked(facts)}, build.target: {target}",
        {"targets_of_format": [one for one in TARGETS if one not in row.not_on], "formats_of_target": others},
        [
            *other_weights(facts, like[:3]),
            *([to_target(facts, DEFAULT.name)] if DEFAULT.name not in row.not_on else []),
        ],
        why=row.not_on[target],
    )


def _bits(row: FormatRow) -> int:
    return 16 if row.weight is None else row.weight.bits


def _computed(facts: Facts, row: FormatRow) -> bool:
    """Whether the recipe's architectures have kernels for a format."""
    if row.weight is None or not facts.target.needs_gpu:
        return row.weight is not None
    supports = ((item.support(row.name, facts.recipe.build.target), item.name) for item in facts.target_rows)
    return all(support == "yes" or (support is None and name in row.native) for support, name in supports)


@rule("TF-K3-014", "a way to quantize that is known and not offered", needs=("format",), waivable=False)
def refused_by_name(facts: Facts) -> Iterator[Violation]:
    """Its result would be loaded by nothing, or mean another model than the one that was measured."""
    name = facts.recipe.quantize.format
    row = refused_formats().get(name)
    if row is not None:
        yield Violation(
            f"{row.title} is not offered: {row.who} does not take it",
            f"quantize.format: {name}",
            {"refused_by": row.who, "instead": list(row.instead)},
            [to_format(facts, other) for other in row.instead],
            why=row.why,
        )


@rule("TF-K3-015", "nothing is left to quantize", needs=("format", "model"), waivable=False)
def something_quantized(facts: Facts) -> Iterator[Violation]:
    """Scope and exclude list together take in every linear of the model: the result would be the source."""
    quantize = facts.recipe.quantize
    row = facts.formats.get(quantize.format)
    if row is None or row.weight is None or quantized_linears(facts.require_model(), quantize.unquantized):
        return
    scope = quantize.scope != "all" and quantized_linears(facts.require_model(), quantize.exclude)
    yield Violation(
        f"scope {quantize.scope} and quantize.exclude leave no linear to quantize to {row.name}",
        facts.asked("quantize.scope", "quantize.exclude"),
        {"scope": quantize.scope, "exclude": list(quantize.exclude)},
        ["quantize.scope: all" if scope else "quantize.exclude: [lm_head] with quantize.scope: all"],
    )
