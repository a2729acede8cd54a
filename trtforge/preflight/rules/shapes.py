"""K4, K5, K6, K16, K18: sizes that must divide, heads, vocabulary, ranks, rope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.model import Linear, linears, matches, quantized_linears
from trtforge.recipe.keys import nearest

_TPS = (1, 2, 4, 8, 16)
#: rope types that the graph builder writes
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ROPE_NEEDS = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _width(linear: Linear, tp: int) -> float:
    """K on one rank."""
    return linear.columns / tp if linear.split == "columns" else float(linear.columns)


def _fits(quantized: Sequence[Linear], tp: int, group: int) -> bool:
    return all(_width(linear, tp) % group == 0 for linear in quantized)


def _padded(linear: Linear, tp: int, group: int) -> int:
    multiple = group * (tp if linear.split == "columns" else 1)
    return -(-linear.columns // multiple) * multiple


@rule(
    "TF-K4-001",
    "group size does not divide a linear's input width",
    why="Every row of a weight is cut into whole groups on every rank; a partial group has no scale, and export fails.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/1636",
    needs=("model", "format"),
    waivable=False,
)
def group_divides(facts: Facts) -> Iterator[Violation]:
    row, quantize, tp = facts.format, facts.recipe.quantize, facts.recipe.build.parallel.tp
    if row is None or not row.group_sizes or row.default_group_size is None:
        return
    group = quantize.group_size or row.default_group_size
    quantized = quantized_linears(facts.require_model(), quantize.exclude)
    bad = [linear for linear in quantized if _width(linear, tp) % group]
    if not bad:
        return
    offenders: dict[str, Any] = {
        linear.kind: {"K": linear.columns, "K_per_rank": _width(linear, tp), "remainder": _width(linear, tp) % group}
        for linear in bad
    }
    model = facts.require_model()
    pairs = [
        (ranks, size)
        for ranks in _TPS
        if model.heads % ranks == 0 and _kv_fits(model.kv_heads, ranks)
        for size in row.group_sizes
        if _fits(quantized, ranks, size)
    ]
    padded = {linear.kind: _padded(linear, tp, group) for linear in bad}
    remedies = [f"quantize.group_size: {size}" for ranks, size in sorted(pairs, reverse=True) if ranks == tp]
    remedies += [
        f"build.parallel.tp: {ranks} with quantize.group_size: {size}" for ranks, size in pairs if ranks != tp
    ][:4]
    remedies.append("quantize.format: fp8 (one scale a tensor, no groups)")
    remedies.append("pad the checkpoint: " + ", ".join(f"{kind} to K = {width}" for kind, width in padded.items()))
    widths = ", ".join(f"{kind} (K = {item['K_per_rank']:g})" for kind, item in offenders.items())
    yield Violation(
        f"group size {group} does not divide {widths}" + (f" with tp {tp}" if tp > 1 else ""),
        f"quantize.format: {row.name}, quantize.group_size: {group}"
        + ("" if quantize.group_size else " (the format's default)")
        + (f", build.parallel.tp: {tp}" if tp > 1 else ""),
        {
            "group_size": group,
            "tp": tp,
            "linears": offenders,
            "works_tp_group": [list(pair) for pair in pairs],
            "padded_K": padded,
        },
        remedies,
    )


@rule(
    "TF-K4-002",
    "group size that the format does not have",
    why="Kernels exist for the listed group sizes only; a format with one scale a tensor has no groups.",
    needs=("format",),
    waivable=False,
)
def group_allowed(facts: Facts) -> Iterator[Violation]:
    row, group = facts.format, facts.recipe.quantize.group_size
    if row is None or group is None or group in row.group_sizes:
        return
    yield Violation(
        f"format {row.name} has no group size {group}",
        f"quantize.format: {row.name}, quantize.group_size: {group}",
        {"group_size": group, "allowed": list(row.group_sizes)},
        [*(f"quantize.group_size: {size}" for size in row.group_sizes), "quantize.group_size: null"],
    )


@rule(
    "TF-K5-001",
    "attention heads do not split over the ranks",
    why="A rank holds whole heads.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/2200",
    needs=("model",),
    waivable=False,
)
def heads_split(facts: Facts) -> Iterator[Violation]:
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if model.heads % tp:
        works = [
            ranks for ranks in range(1, model.heads + 1) if model.heads % ranks == 0 and _kv_fits(model.kv_heads, ranks)
        ]
        yield Violation(
            f"{model.heads} heads do not split over tp {tp}",
            f"build.parallel.tp: {tp}",
            {"heads": model.heads, "kv_heads": model.kv_heads, "tp": tp, "works": works},
            [f"build.parallel.tp: {ranks}" for ranks in sorted(works, key=lambda ranks: abs(ranks - tp))[:3]],
        )


@rule(
    "TF-K5-002",
    "KV heads do not split over the ranks",
    why="KV heads are shared out over the ranks or copied to groups of ranks, so one number must divide the other.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/2310",
    needs=("model",),
    waivable=False,
)
def kv_heads_split(facts: Facts) -> Iterator[Violation]:
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if not _kv_fits(model.kv_heads, tp):
        works = [
            ranks for ranks in range(1, model.heads + 1) if model.heads % ranks == 0 and _kv_fits(model.kv_heads, ranks)
        ]
        yield Violation(
            f"{model.kv_heads} KV heads and tp {tp}: neither divides the other",
            f"build.parallel.tp: {tp}",
            {"kv_heads": model.kv_heads, "tp": tp, "works": works},
            [f"build.parallel.tp: {ranks}" for ranks in sorted(works, key=lambda ranks: abs(ranks - tp))[:3]],
        )


def _kv_fits(kv_heads: int, tp: int) -> bool:
    return kv_heads % tp == 0 or tp % kv_heads == 0


@rule(
    "TF-K6-001",
    "a tied lm_head would be quantized",
    why="It is the embedding: quantized, it is stored twice and the embedding's rounding reaches every logit.",
    source="https://github.com/NVIDIA/Model-Optimizer/issues/138",
    needs=("model",),
)
def tied_head_excluded(facts: Facts) -> Iterator[Violation]:
    model, quantize = facts.require_model(), facts.recipe.quantize
    if quantize.format == "none" or not model.tied:
        return
    if not any(matches("lm_head", pattern) for pattern in quantize.exclude):
        yield Violation(
            "lm_head shares the embedding's weights and is not excluded from quantization",
            f"quantize.exclude: {list(quantize.exclude)}",
            {"tied": True, "vocab": model.vocab, "hidden": model.hidden},
            [f"quantize.exclude: {['lm_head', *quantize.exclude]}"],
        )


@rule(
    "TF-K6-002",
    "an exclude pattern that matches nothing",
    why="A misspelt name leaves the module quantized, against what the recipe says.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/855",
    severity="warning",
    needs=("model",),
)
def exclude_matches(facts: Facts) -> Iterator[Violation]:
    quantize = facts.recipe.quantize
    if quantize.format == "none":
        return
    known = linears(facts.require_model())
    names = [name for linear in known for name in linear.names]
    for pattern in quantize.exclude:
        if not any(matches(name, pattern) for name in names):
            near = nearest(pattern.strip("*."), [linear.kind for linear in known])
            yield Violation(
                f"quantize.exclude: {pattern} matches no linear of this model",
                f"quantize.exclude: {pattern}",
                {"kinds": [linear.kind for linear in known], "example": names[0]},
                [f"write {near}"] if near else ["a kind such as o_proj, or a path such as model.layers.0.*"],
            )


@rule(
    "TF-K6-003",
    "the vocabulary does not split over the ranks",
    why="The embedding and the head are cut along the vocabulary.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/98",
    needs=("model",),
)
def vocabulary_splits(facts: Facts) -> Iterator[Violation]:
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if model.vocab % tp:
        padded = -(-model.vocab // tp) * tp
        yield Violation(
            f"vocabulary {model.vocab} does not split over tp {tp}",
            f"build.parallel.tp: {tp}",
            {"vocab": model.vocab, "tp": tp, "padded": padded},
            [f"pad the embedding to {padded} rows", "build.parallel.tp: 1"],
        )


@rule(
    "TF-K16-001",
    "more ranks than the target runs",
    why="The torch target runs in one process on one device.",
    waivable=False,
)
def ranks_of_target(facts: Facts) -> Iterator[Violation]:
    build = facts.recipe.build
    ranks = build.parallel.tp * build.parallel.pp * build.parallel.ep
    if build.target == "torch" and ranks > 1:
        yield Violation(
            f"target torch runs 1 rank, the recipe asks for {ranks}",
            f"build.parallel: {{tp: {build.parallel.tp}, pp: {build.parallel.pp}, ep: {build.parallel.ep}}}",
            {"ranks": ranks},
            ["build.parallel: {tp: 1, pp: 1, ep: 1}"],
        )


@rule(
    "TF-K16-002",
    "more pipeline ranks than layers",
    why="A pipeline rank holds at least one layer.",
    needs=("model",),
    waivable=False,
)
def pipeline_splits(facts: Facts) -> Iterator[Violation]:
    model, pp = facts.require_model(), facts.recipe.build.parallel.pp
    if pp > model.layers:
        yield Violation(
            f"{model.layers} layers do not fill pp {pp}",
            f"build.parallel.pp: {pp}",
            {"layers": model.layers, "pp": pp},
            [f"build.parallel.pp: {model.layers} or less"],
        )


@rule(
    "TF-K18-001",
    "rope type that the graph does not write",
    why="With another rotation the model reads positions wrongly: short prompts look fine, long ones turn to garbage.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/2105",
    needs=("model",),
    waivable=False,
)
def rope_type(facts: Facts) -> Iterator[Violation]:
    kind = _rope_kind(facts)
    if kind not in ROPE_TYPES:
        yield Violation(
            f"rope type {kind} is not written by the graph builder",
            f"config.json of {facts.recipe.model.source}: rope_type: {kind}",
            {"known": list(ROPE_TYPES)},
            [f"a checkpoint with rope type {', '.join(ROPE_TYPES)}"],
        )


@rule(
    "TF-K18-002",
    "rope settings that are incomplete",
    why="A missing factor would be taken as 1 and the context extension lost.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/2302",
    needs=("model",),
    waivable=False,
)
def rope_complete(facts: Facts) -> Iterator[Violation]:
    kind, rope = _rope_kind(facts), facts.require_model().rope
    missing = [key for key in _ROPE_NEEDS.get(kind, ()) if rope.get(key) is None]
    if missing:
        yield Violation(
            f"rope type {kind} without {', '.join(missing)}",
            f"config.json of {facts.recipe.model.source}: rope_type: {kind}",
            {"given": {key: value for key, value in rope.items() if isinstance(value, (int, float, str))}},
            [f"add {', '.join(missing)} to rope_parameters in config.json"],
        )


def _rope_kind(facts: Facts) -> str:
    rope = facts.require_model().rope
    return str(rope.get("rope_type") or rope.get("type") or "default")
