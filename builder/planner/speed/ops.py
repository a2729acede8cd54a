"""The ops of one step: what a decoder computes, layer kinds counted, before and after fusion.

Policy: an op states its sizes, not its cost; costs follow from the sizes, the step and the formats
(:mod:`builder.planner.speed.cost`). Names are module paths with ``*`` for the layer. The raw list is what the
graph's nodes say (:mod:`builder.planner.speed.graph_ops`); :func:`fused` is what an engine launches: pointwise
chains ride in their neighbours, linears of one input are one GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.planner.precision import weight_format
from builder.planner.types import ParallelPlan, Precision
from trtforge.formats.table import load_formats
from trtforge.models.record import Model
from trtforge.models.shape import matches

Rows = Literal["tokens", "logits"]
#: along which side tensor parallelism cuts: output rows, input columns, experts, or not at all
Split = Literal["none", "rows", "columns"]


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ with W [n, k], ``count`` times a step.

    ``weights`` names the stored format, ``activations`` the format that x is rounded to (None: weight only).
    ``source`` is the op that made x: linears of one source can run as one GEMM. ``experts`` > 0: that many
    weights lie on the rank, the model has ``groups`` times as many, and ``active`` of those see each token.
    """

    name: str
    n: int
    k: int
    weights: str
    activations: str | None = None
    source: str = ""
    rows: Rows = "tokens"
    split: Split = "none"
    experts: int = 0
    active: int = 0
    groups: int = 1
    count: int = 1


@dataclass(frozen=True)
class Attention:
    """Causal attention of ``heads`` over ``kv_heads`` with the paged cache, ``count`` layers of it.

    ``head_size`` is E; ``window`` 0 means full attention. ``latent`` > 0 (MLA): the cache holds ``latent``
    elements a token, shared by all heads; decode multiplies with them directly, prefill with expanded heads.
    """

    name: str
    heads: int
    kv_heads: int
    head_size: int
    window: int = 0
    kv_format: str = "bfloat16"
    latent: int = 0
    value_size: int = 0
    count: int = 1


@dataclass(frozen=True)
class Pointwise:
    """An op bound by memory: ``reads`` and ``writes`` values a row, ``kind`` the operator."""

    name: str
    kind: str
    reads: int
    writes: int
    rows: Rows = "tokens"
    split: Split = "none"
    count: int = 1


@dataclass(frozen=True)
class Collective:
    """Communication of ``values`` a row in the base format among ``ranks``, or to the next pipeline stage.

    An all-gather moves what an all-to-all of the whole result does, so both have one kind.
    """

    name: str
    kind: Literal["all_reduce", "all_to_all", "point_to_point"]
    values: float
    ranks: int
    rows: Rows = "tokens"
    count: int = 1


Op = Linear | Attention | Pointwise | Collective

#: raw operators that an engine runs inside the op before or after them
FUSED_POINTWISE = frozenset(
    {"RotaryEmbedding", "Swish", "Gelu", "Cast", "QuantizeLinear", "DequantizeLinear", "DynamicBlockQuantize", "Add"}
)


def kept_layers(module: str, layers: range, precision: Precision) -> int:
    """In how many of ``layers`` a linear keeps the base format (the recipe's ``quantize.exclude``).

    A module outside the layers has no ``*`` and counts once.
    """
    if precision.weights == precision.base:
        return len(layers)
    names = [module.replace("*", str(layer), 1) for layer in layers] if "*" in module else [module]
    return sum(any(matches(name, pattern) for pattern in precision.exclude) for name in names)


class _Writer:
    """Collects the raw ops of a model from its sizes, in the graph's order."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.activations = activation_format(precision.weights)
        self.ops: list[Op] = []

    def linear(
        self,
        name: str,
        n: int,
        k: int,
        source: str,
        layers: range,
        *,
        split: Split,
        rows: Rows = "tokens",
        experts: int = 0,
        active: int = 0,
    ) -> None:
        kept = kept_layers(name, layers, self.precision)
        formats = ((self.precision.base, None, kept), (self.precision.weights, self.activations, len(layers) - kept))
        self.ops.extend(
            Linear(name, n, k, weights, activations, source, rows, split, experts, active, count=count)
            for weights, activations, count in formats
            if count
        )

    def pointwise(
        self,
        name: str,
        kind: str,
        reads: int,
        writes: int,
        count: int = 1,
        *,
        rows: Rows = "tokens",
        split: Split = "none",
    ) -> None:
        self.ops.append(Pointwise(name, kind, reads, writes, rows, split, count))


def activation_format(weights: str) -> str | None:
    """What tensor cores round the input of linears of a weight format to; None for weight-only formats."""
    compute = weight_format(weights).compute
    return compute if compute in load_formats().rounded_inputs else None


def ops_of_model(model: Model, precision: Precision) -> list[Op]:
    """The raw ops of one whole step from the model's sizes, with the shapes that the graph writer gives them."""
    writer = _Writer(precision)
    width = model.hidden
    writer.pointwise("model.embed_tokens", "Gather", width, width)
    if model.joined:
        writer.linear("fc", width, model.joined, "taps", range(1), split="none")
    _attention(writer, model)
    _norms(writer, model)
    _mlps(writer, model)
    writer.pointwise("model", "Gather", width, width, rows="logits")
    writer.pointwise("model.norm", "RMSNormalization", width, width, rows="logits")
    writer.linear("lm_head", model.vocab, width, "model.norm", range(1), split="rows", rows="logits")
    if precision.base != "float32":
        writer.pointwise("lm_head", "Cast", model.vocab, model.vocab, rows="logits", split="rows")
    return writer.ops


def _attention(writer: _Writer, model: Model) -> None:
    module, layers, source = "model.layers.*.self_attn", model.layers, "model.layers.*.input_layernorm"
    every = range(layers)
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    if model.mla is not None:
        _latent_attention(writer, model, module, source)
        return
    first = range(1 if model.joined else 0)
    for columns, those in ((2 * model.hidden, first), (model.hidden, range(len(first), layers))):
        if those:
            writer.linear(f"{module}.q_proj", queries, columns, source, those, split="rows")
            writer.linear(f"{module}.k_proj", keys, columns, source, those, split="rows")
            writer.linear(f"{module}.v_proj", keys, columns, source, those, split="rows")
    if model.qk_norm:
        writer.pointwise(f"{module}.q_norm", "RMSNormalization", queries, queries, layers, split="rows")
        writer.pointwise(f"{module}.k_norm", "RMSNormalization", keys, keys, layers, split="rows")
    writer.pointwise(module, "RotaryEmbedding", queries, queries, layers, split="rows")
    writer.pointwise(module, "RotaryEmbedding", keys, keys, layers, split="rows")
    for window, count in ((0, layers - model.window_layers), (model.sliding_window, model.window_layers)):
        if count:
            writer.ops.append(
                Attention(
                    module, model.heads, model.kv_heads, model.head_size, window, writer.precision.kv, count=count
                )
            )
    writer.linear(f"{module}.o_proj", model.hidden, queries, module, every, split="columns")


def _latent_attention(writer: _Writer, model: Model, module: str, source: str) -> None:
    """DeepSeek-V2's latent attention (https://arxiv.org/abs/2405.04434, section 2.1)."""
    mla = model.mla
    assert mla is not None
    layers, heads = model.layers, model.heads
    every = range(layers)
    query = heads * (mla.nope_size + mla.rope_size)
    if mla.q_rank is None:
        writer.linear(f"{module}.q_proj", query, model.hidden, source, every, split="rows")
    else:
        writer.linear(f"{module}.q_a_proj", mla.q_rank, model.hidden, source, every, split="none")
        writer.linear(f"{module}.q_b_proj", query, mla.q_rank, f"{module}.q_a_layernorm", every, split="rows")
    latent = mla.kv_rank + mla.rope_size
    writer.linear(f"{module}.kv_a_proj_with_mqa", latent, model.hidden, source, every, split="none")
    expanded = heads * (mla.nope_size + mla.value_size)
    writer.linear(f"{module}.kv_b_proj", expanded, mla.kv_rank, f"{module}.kv_a_layernorm", every, split="rows")
    writer.ops.append(
        Attention(
            module,
            heads,
            1,
            mla.nope_size + mla.rope_size,
            0,
            writer.precision.kv,
            latent=latent,
            value_size=mla.value_size,
            count=layers,
        )
    )
    writer.linear(f"{module}.o_proj", model.hidden, heads * mla.value_size, module, every, split="columns")


def _norms(writer: _Writer, model: Model) -> None:
    width, layers = model.hidden, model.layers
    writer.pointwise("model.layers.*.input_layernorm", "RMSNormalization", width, width, layers)
    writer.pointwise("model.layers.*.post_attention_layernorm", "RMSNormalization", width, width, layers)
    extra = model.norms_a_layer - 2
    if extra > 0:
        writer.pointwise("model.layers.*", "RMSNormalization", width, width, extra * layers)
    writer.pointwise("model.layers.*", "Add", 2 * width, width, 2 * layers)


def _mlps(writer: _Writer, model: Model) -> None:
    module, source = "model.layers.*.mlp", "model.layers.*.post_attention_layernorm"
    moe = model.moe
    dense = model.layers - model.moe_layers
    if dense:
        _gated(writer, module, source, model.hidden, model.ffn, range(dense))
    if moe is None or not model.moe_layers:
        return
    sparse = range(dense, model.layers)
    router = Linear(f"{module}.gate", moe.experts, model.hidden, writer.precision.base, None, source)
    writer.ops.append(replace(router, count=len(sparse)))
    shapes: tuple[tuple[str, int, int, str, Split], ...] = (
        ("gate_proj", moe.ffn, model.hidden, source, "rows"),
        ("up_proj", moe.ffn, model.hidden, source, "rows"),
        ("down_proj", model.hidden, moe.ffn, f"{module}.experts", "columns"),
    )
    for part, n, k, origin, split in shapes:
        name = f"{module}.experts.{part}"
        writer.linear(name, n, k, origin, sparse, split=split, experts=moe.experts, active=moe.active)
    active = moe.active * moe.ffn
    writer.pointwise(f"{module}.experts", "Mul", 2 * active, active, len(sparse), split="rows")
    if moe.shared_ffn:
        _gated(writer, f"{module}.shared_experts", source, model.hidden, moe.shared_ffn, sparse)


def _gated(writer: _Writer, module: str, source: str, hidden: int, ffn: int, layers: range) -> None:
    writer.linear(f"{module}.gate_proj", ffn, hidden, source, layers, split="rows")
    writer.linear(f"{module}.up_proj", ffn, hidden, source, layers, split="rows")
    writer.pointwise(f"{module}.act_fn", "Swish", ffn, ffn, len(layers), split="rows")
    writer.pointwise(module, "Mul", 2 * ffn, ffn, len(layers), split="rows")
    writer.linear(f"{module}.down_proj", hidden, ffn, module, layers, split="columns")


def fused(ops: Iterable[Op]) -> list[Op]:
    """What an engine launches: linears of one input as one GEMM, pointwise chains inside their neighbours.

    A residual sum rides in the norm behind it, which then reads and writes the stream too. Rotary embedding
    and the write of the cache ride in the attention, rounding of activations in the op that makes them.
    """
    merged: dict[tuple[object, ...], Linear] = {}
    rest: list[Op] = []
    for op in ops:
        if isinstance(op, Linear):
            key = (op.source or op.name, op.k, op.weights, op.activations, op.rows, op.split, op.experts, op.count)
            have = merged.get(key)
            name = f"{have.name}+{op.name.rpartition('.')[2]}" if have else op.name
            merged[key] = replace(op, name=name, n=op.n + (have.n if have else 0))
        elif isinstance(op, Pointwise) and op.kind in FUSED_POINTWISE:
            continue
        elif isinstance(op, Pointwise) and op.kind == "RMSNormalization" and ".layers.*." in op.name:
            inside = op.name.endswith(("q_norm", "k_norm"))
            rest.append(op if inside else replace(op, reads=2 * op.reads, writes=2 * op.writes))
        else:
            rest.append(op)
    return [*merged.values(), *rest]


def sharded(ops: Sequence[Op], model: Model, parallel: ParallelPlan) -> list[Op]:
    """The ops of one tensor-parallel rank for the whole model, with the collectives that the split needs.

    Pipeline stages share out layers, so their ops together are this list; the hand-over is a collective of its
    own. KV heads are copied when there are more ranks than heads. Experts: ``ep`` groups hold ``experts / ep``
    each, cut ``tp / ep`` ways (see :class:`builder.planner.types.ParallelPlan`). Source of the two all-reduces a
    layer: Shoeybi et al., "Megatron-LM", 2019, https://arxiv.org/abs/1909.08053, section 3.
    """
    tp = parallel.tp
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Linear):
            cut = tp // parallel.ep if op.experts else tp
            kv = op.name.endswith(("k_proj", "v_proj")) and not model.mla
            result.append(_cut_linear(op, cut, model if kv else None, parallel.ep))
        elif isinstance(op, Attention):
            result.append(replace(op, heads=-(-op.heads // tp), kv_heads=-(-op.kv_heads // tp)))
        elif isinstance(op, Pointwise) and op.split == "rows":
            result.append(replace(op, reads=-(-op.reads // tp), writes=-(-op.writes // tp)))
        else:
            result.append(op)
    return [*result, *_collectives(model, parallel)]


def _cut_linear(op: Linear, cut: int, kv: Model | None, ep: int) -> Linear:
    experts, groups = (-(-op.experts // ep), ep) if op.experts else (0, 1)
    if op.split == "rows":
        n = -(-kv.kv_heads // cut) * kv.head_size if kv else -(-op.n // cut)
        return replace(op, n=n, experts=experts, groups=groups)
    if op.split == "columns":
        return replace(op, k=-(-op.k // cut), experts=experts, groups=groups)
    return op


def _collectives(model: Model, parallel: ParallelPlan) -> list[Op]:
    """What :func:`builder.planner.communication.step_communication` sums, and the gathering of the logits."""
    tp, ep, layers = parallel.tp, parallel.ep, "model.layers.*"
    result: list[Op] = []
    if tp > 1 and ep > 1 and model.moe is not None:
        dense, copies = model.layers - model.moe_layers, model.hidden * model.moe.active / ep
        result.append(Collective(layers, "all_reduce", model.hidden, tp, count=model.layers + dense))
        result.append(Collective(f"{layers}.mlp.experts", "all_to_all", copies, ep, count=2 * model.moe_layers))
        if tp > ep:
            cut = Collective(f"{layers}.mlp.experts", "all_reduce", copies, tp // ep, count=model.moe_layers)
            result.append(cut)
    elif tp > 1:
        result.append(Collective(layers, "all_reduce", model.hidden, tp, count=2 * model.layers))
    if tp > 1:
        result.append(Collective("lm_head", "all_to_all", model.vocab, tp, rows="logits"))
    if parallel.pp > 1:
        result.append(Collective("model", "point_to_point", model.hidden, 2, count=parallel.pp - 1))
    return result
