"""K3: a precision needs a kernel on the target and the architecture."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.recipe.keys import nearest

_MATRIX = "https://nvidia.github.io/TensorRT-LLM/features/quantization.html"


@rule(
    "TF-K3-001",
    "unknown quantization format",
    why="A format is a row of the format table; without one nothing says how to quantize, export or run it.",
    needs=("format",),
    waivable=False,
)
def unknown_format(facts: Facts) -> Iterator[Violation]:
    name = facts.recipe.quantize.format
    if name in facts.formats:
        return
    near = nearest(name, list(facts.formats))
    yield Violation(
        f"quantize.format: {name} is no row of the format table",
        f"quantize.format: {name}",
        {"known": list(facts.formats)},
        [f"quantize.format: {near}"] if near else [f"quantize.format: {known}" for known in facts.formats],
    )


@rule(
    "TF-K3-002",
    "no kernel for the format on the architecture",
    why="Without a kernel the engine either fails to build or silently runs another precision.",
    source=_MATRIX,
    needs=("format",),
)
def format_on_architecture(facts: Facts) -> Iterator[Violation]:
    name = facts.recipe.quantize.format
    if facts.recipe.build.target == "torch" or name not in facts.formats:
        return
    for architecture in facts.recipe.build.architectures:
        row = facts.architectures.row(architecture)
        if row is None:
            continue
        support = row.formats.get(name)
        if support == "no" or (support is None and architecture not in facts.formats[name].native):
            works = [other for other in facts.formats if row.formats.get(other) == "yes"]
            hosts = [item.name for item in facts.architectures.rows if item.formats.get(name) == "yes"]
            yield Violation(
                f"{name} has no kernel on {architecture} ({row.title})",
                f"quantize.format: {name}, build.architectures: {architecture}",
                {"works_on": hosts, "formats_here": works},
                [*(f"quantize.format: {other}" for other in works if other != "none"), f"build.architectures: {hosts}"],
            )


@rule(
    "TF-K3-003",
    "no kernel for the KV-cache format on the architecture",
    why="The attention kernel of that architecture cannot read this cache.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/222",
)
def kv_on_architecture(facts: Facts) -> Iterator[Violation]:
    mode = facts.recipe.quantize.kv_cache
    if facts.recipe.build.target == "torch":
        return
    for architecture in facts.recipe.build.architectures:
        row = facts.architectures.row(architecture)
        if row is not None and row.kv_cache.get(mode) in ("no", "disputed"):
            stated = (
                "listed by the matrix but contradicted by reports" if row.kv_cache[mode] == "disputed" else "missing"
            )
            yield Violation(
                f"KV cache {mode} on {architecture} ({row.title}) is {stated}",
                f"quantize.kv_cache: {mode}, build.architectures: {architecture}",
                {"support": row.kv_cache[mode]},
                ["quantize.kv_cache: none", "build.architectures: [sm_89] or later"],
            )


@rule(
    "TF-K3-004",
    "unknown GPU architecture",
    why="The tables say nothing about it, so nothing could be promised about kernels.",
    source=_MATRIX,
)
def unknown_architecture(facts: Facts) -> Iterator[Violation]:
    known = [row.name for row in facts.architectures.rows]
    for architecture in facts.recipe.build.architectures:
        if architecture not in known:
            near = nearest(architecture, known)
            yield Violation(
                f"build.architectures: {architecture} is not in the table",
                f"build.architectures: {architecture}",
                {"known": known},
                [f"write {near}"] if near else [f"one of {', '.join(known)}"],
            )


@rule(
    "TF-K3-005",
    "KV-cache format that no engine here reads",
    why="The paged pool must hold the format that the attention reads.",
    waivable=False,
)
def kv_mode_supported(facts: Facts) -> Iterator[Violation]:
    mode = facts.recipe.quantize.kv_cache
    row = facts.kv_modes.get(mode)
    if row is not None and not row.supported:
        usable = [name for name, other in facts.kv_modes.items() if other.supported]
        yield Violation(
            f"KV cache {mode} cannot be served",
            f"quantize.kv_cache: {mode}",
            {"usable": usable},
            [f"quantize.kv_cache: {other}" for other in usable if other != "none"] + ["quantize.kv_cache: none"],
            why=row.why,
        )


@rule(
    "TF-K3-006",
    "quantizing a checkpoint that is quantized already",
    why="Its high-precision weights are gone; a second rounding adds error and the scales of the first are lost.",
    needs=("model",),
    waivable=False,
)
def already_quantized(facts: Facts) -> Iterator[Violation]:
    model, quantize = facts.require_model(), facts.recipe.quantize
    if model.prequantized and (quantize.format != "none" or quantize.kv_cache != "none"):
        yield Violation(
            f"the checkpoint holds {model.prequantized} weights already",
            f"quantize: {{format: {quantize.format}, kv_cache: {quantize.kv_cache}}}, "
            f"model.source: {facts.recipe.model.source}",
            {"stored": model.prequantized},
            ["quantize: {format: none, kv_cache: none}", "give the unquantized checkpoint as source"],
        )


@rule(
    "TF-K3-007",
    "GPU architectures given to a target that does not compile for one",
    why="The torch target runs the same engine directory on whatever machine loads it.",
    severity="warning",
)
def architectures_without_effect(facts: Facts) -> Iterator[Violation]:
    build = facts.recipe.build
    if build.target == "torch" and build.architectures:
        yield Violation(
            "build.architectures has no effect on target torch",
            f"build.architectures: {list(build.architectures)}",
            {},
            ["remove build.architectures"],
        )
