"""A decoder's sizes, switches and tensors: the one record that intake, graphs, converters, preflight and planner read.

Made of a config.json (``quantize.intake.model_config.check_config``, ``builder.planner.model.from_config``), or of the
description of a draft's head. Shape letters as everywhere: V vocabulary, D width, H heads, K kv heads, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from trtforge.models.kv import KvSizes
from trtforge.tables.decoders import Factors

Shape = tuple[int, ...]
#: rope types that multiply the context, and a factor that no model has
_STRETCHING = ("yarn", "linear")
_MOST_STRETCH = 2**40


@dataclass(frozen=True)
class TensorKind:
    """Tensors of one name and shape ([out, in] of a linear); ``*`` stands for the numbers of layer and expert.

    ``layers`` hold them (empty: they lie outside the layers), ``each`` of them a layer.
    """

    pattern: str
    shape: Shape
    layers: tuple[int, ...] = ()
    each: int = 1

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        return self.each * max(len(self.layers), 1)

    def names(self) -> Iterator[str]:
        """The name of each tensor; ``*`` of an expert counts from 0."""
        for layer in self.layers or (0,):
            name = self.pattern.replace("*", str(layer), 1) if self.layers else self.pattern
            yield from (name.replace("*", str(one), 1) for one in range(self.each))


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: ``experts`` routed ones a layer, ``active`` of them a token, each of width ``ffn``.

    ``shared_ffn`` is the width of all shared experts of a layer together (0: none); ``dense_layers`` counts the
    layers that have an ordinary MLP instead.
    """

    experts: int
    active: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek): what the cache holds and the ranks of the projections."""

    kv_rank: int
    rope_size: int
    q_rank: int | None
    nope_size: int
    value_size: int


@dataclass(frozen=True)
class Projection:
    """A linear of every layer: its name below the layer, [out, in], whether it has a bias, and which side tensor
    parallelism cuts."""

    path: str
    rows: int
    columns: int
    bias: bool
    split: Literal["rows", "columns"]


@dataclass(frozen=True)
class Model:
    """A decoder, whole, before any split.

    Attributes:
        architecture: the Hugging Face class.
        hidden: D; ffn: the MLP's width; heads: H; kv_heads: K; head_size: E; vocab: V, rows of the embedding.
        max_positions: as config.json says; :attr:`usable_positions` is what its rope reaches.
        tied: the output projection is the embedding.
        name: what reports call it.
        family: the graph module that writes it; empty where none does.
        dtype: of the unquantized tensors; ``gguf:…`` for a GGUF file as it lies there.
        attention_bias: biases on q, k and v; o_bias: on the output projection; mlp_bias: on the MLP's linears.
        qk_norm: RMS norms of q and k, over each head or over all of them (width).
        norms: whether norms are in front of attention and MLP or behind.
        fused: q, k and v are one linear, gate and up another.
        rotates: whether each layer rotates queries and keys; empty: every layer does.
        rotary_size: how many values of a head are rotated; 0: all.
        factors: what embeddings, scores, results of attention and MLP, and logits are multiplied by.
        windows: each layer's sliding window in tokens, 0 where it sees everything; empty: every layer does.
        rope: rope_type, rope_theta and what the type needs.
        joined: width of the target's states that an EAGLE-3 head's ``fc`` joins; its first layer reads twice D.
        key_bias: largest magnitude of the biases on k; None: none there, or their values were not read.
        prequantized: format of a checkpoint that arrives quantized; ``unquantized`` are patterns of the modules that
            it left alone, ``prequantized_kv_cache`` the format that its KV cache is calibrated for.
        assumed: what the configuration did not say, in sentences.
    """

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    max_positions: int
    tied: bool
    name: str = ""
    family: str = ""
    dtype: str = "bfloat16"
    attention_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool | Literal["width"] = False
    norms: Literal["pre", "post"] = "pre"
    fused: bool = False
    rotates: tuple[bool, ...] = ()
    rotary_size: int = 0
    factors: Factors = field(default_factory=Factors)
    norm_eps: float = 1e-6
    norms_a_layer: int = 2
    windows: tuple[int, ...] = ()
    rope: Mapping[str, Any] = field(default_factory=dict, hash=False)
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    moe: Experts | None = None
    mla: Latent | None = None
    joined: int = 0
    key_bias: float | None = None
    prequantized: str | None = None
    prequantized_kv_cache: str | None = None
    unquantized: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def sliding_window(self) -> int:
        """The window of the layers that have one; 0: none has."""
        return max(self.windows, default=0)

    @property
    def window_layers(self) -> int:
        return sum(window > 0 for window in self.windows)

    @property
    def full_attention_layers(self) -> tuple[int, ...]:
        """The layers that see everything, in a model where others do not."""
        return tuple(i for i, window in enumerate(self.windows) if not window) if self.sliding_window else ()

    @property
    def score_factor(self) -> float:
        """What the scores of queries and keys are multiplied by."""
        return self.head_size**-0.5 if self.factors.attention is None else self.factors.attention

    @property
    def usable_positions(self) -> int:
        """Positions that the model's rope reaches: config.json's figure, or what its scaling stretches it to.

        YaRN and linear scaling multiply the original context, and publishers often leave
        ``max_position_embeddings`` at the original
        (https://huggingface.co/Qwen/Qwen2.5-7B-Instruct#processing-long-texts).
        """
        kind, factor = self.rope.get("rope_type") or self.rope.get("type"), self.rope.get("factor")
        original = self.rope.get("original_max_position_embeddings")
        if kind not in _STRETCHING or not isinstance(original, int) or isinstance(original, bool):
            return self.max_positions
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < _MOST_STRETCH:
            return self.max_positions
        return max(self.max_positions, int(factor * original))

    @property
    def moe_layers(self) -> int:
        return self.layers - self.moe.dense_layers if self.moe else 0

    @property
    def kv(self) -> KvSizes:
        """What decides the bytes of its keys and values."""
        latent = self.mla.kv_rank + self.mla.rope_size if self.mla is not None else 0
        return KvSizes(self.layers, self.kv_heads, self.head_size, latent)

    @cached_property
    def parameters(self) -> int:
        """Weights that the configuration promises; a tied output projection counts once."""
        return sum(kind.count * kind.elements for kind in tensors(self))


def tensors(model: Model) -> list[TensorKind]:
    every = tuple(range(model.layers))
    dense = model.layers - model.moe_layers
    kinds = [
        TensorKind("model.embed_tokens.weight", (model.vocab, model.hidden)),
        TensorKind("model.norm.weight", (model.hidden,)),
    ]
    if not model.tied:
        kinds.append(TensorKind("lm_head.weight", (model.vocab, model.hidden)))
    kinds += [TensorKind(f"model.layers.*.{name}", shape, every) for name, shape in _attention(model)]
    kinds += [TensorKind(f"model.layers.*.{norm}.weight", (model.hidden,), every) for norm in _norms(model)]
    if dense:
        kinds += [TensorKind(f"model.layers.*.mlp.{n}", s, every[:dense]) for n, s in _mlp(model, model.ffn)]
    if model.moe is not None and model.moe_layers:
        moe, sparse = model.moe, every[dense:]
        kinds.append(TensorKind("model.layers.*.mlp.gate.weight", (moe.experts, model.hidden), sparse))
        for name, shape in _mlp(model, moe.ffn):
            kinds.append(TensorKind(f"model.layers.*.mlp.experts.*.{name}", shape, sparse, moe.experts))
        if moe.shared_ffn:
            for name, shape in _mlp(model, moe.shared_ffn):
                kinds.append(TensorKind(f"model.layers.*.mlp.shared_experts.{name}", shape, sparse))
    return kinds


def expected_tensors(model: Model) -> dict[str, Shape]:
    """Name → shape of every tensor."""
    return {name: kind.shape for kind in tensors(model) for name in kind.names()}


def projections(model: Model) -> tuple[Projection, ...]:
    """The linears of a layer with ordinary attention and one MLP."""
    query, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    attention = {"q": query, "k": keys, "v": keys}
    mlp = {"gate": model.ffn, "up": model.ffn}
    if model.fused:
        attention, mlp = {"qkv": query + 2 * keys}, {"gate_up": 2 * model.ffn}
    bias, width = model.attention_bias, model.hidden
    return (
        *(Projection(f"self_attn.{name}_proj", rows, width, bias, "rows") for name, rows in attention.items()),
        Projection("self_attn.o_proj", width, query, model.o_bias, "columns"),
        *(Projection(f"mlp.{name}_proj", rows, width, model.mlp_bias, "rows") for name, rows in mlp.items()),
        Projection("mlp.down_proj", width, model.ffn, model.mlp_bias, "columns"),
    )


def _norms(model: Model) -> tuple[str, ...]:
    if model.norms == "post":
        return ("post_attention_layernorm", "post_feedforward_layernorm")
    two = ("input_layernorm", "post_attention_layernorm")
    return two if model.norms_a_layer == 2 else (*two, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _attention(model: Model) -> Iterator[tuple[str, Shape]]:
    if model.mla is not None:
        yield from _latent_attention(model)
        return
    yield from _stored(model, "self_attn.")
    if model.qk_norm:
        whole = model.qk_norm == "width"
        yield "self_attn.q_norm.weight", (model.head_size * (model.heads if whole else 1),)
        yield "self_attn.k_norm.weight", (model.head_size * (model.kv_heads if whole else 1),)


def _stored(model: Model, part: str) -> Iterator[tuple[str, Shape]]:
    for linear in projections(model):
        if linear.path.startswith(part):
            yield f"{linear.path}.weight", (linear.rows, linear.columns)
            if linear.bias:
                yield f"{linear.path}.bias", (linear.rows,)


def _latent_attention(model: Model) -> Iterator[tuple[str, Shape]]:
    """DeepSeek-V2's (https://arxiv.org/abs/2405.04434, section 2.1)."""
    mla, width = model.mla, model.hidden
    assert mla is not None
    query = model.heads * (mla.nope_size + mla.rope_size)
    if mla.q_rank:
        yield "self_attn.q_a_proj.weight", (mla.q_rank, width)
        yield "self_attn.q_a_layernorm.weight", (mla.q_rank,)
        yield "self_attn.q_b_proj.weight", (query, mla.q_rank)
    else:
        yield "self_attn.q_proj.weight", (query, width)
    yield "self_attn.kv_a_proj_with_mqa.weight", (mla.kv_rank + mla.rope_size, width)
    yield "self_attn.kv_a_layernorm.weight", (mla.kv_rank,)
    yield "self_attn.kv_b_proj.weight", (model.heads * (mla.nope_size + mla.value_size), mla.kv_rank)
    yield "self_attn.o_proj.weight", (width, model.heads * mla.value_size)


def _mlp(model: Model, ffn: int) -> Iterator[tuple[str, Shape]]:
    """Of an MLP of this width, without ``mlp.`` in front."""
    for name, shape in _stored(replace(model, ffn=ffn), "mlp."):
        yield name.removeprefix("mlp."), shape
