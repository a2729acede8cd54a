"""The tensors of one rank's file: names, types, shapes, and where their bytes come from.

How a linear [N, K] lies in TensorRT-LLM 1.2's checkpoint is in its format's module
(:meth:`trtforge.formats.base.Format.shard`); what its loader renames, transposes and interleaves for
the kernels happens there, at build time.

Query, key and value are one linear ``qkv``, each rank with its own heads of all three. ``mlp.fc`` is Hugging Face's
gate projection, ``mlp.gate`` its up projection. Norms of q and k (Qwen3) are ``q_layernorm``, ``k_layernorm``.

Sources: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/modeling_utils.py
(preprocess_perlayer_weights), models/qwen/convert.py and models/phi3/convert.py there, and ModelOpt 0.47's
export_tensorrt_llm_checkpoint, which
the tests hold this against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from builder.targets.trtllm.ranks import Rank, kv_heads_of, layers_of
from builder.targets.trtllm.source import BITS, Array, Checkpoint, widen
from trtforge.formats import format_named
from trtforge.formats.base import INPUT_FACTORS
from trtforge.formats.table import UNQUANTIZED
from trtforge.ground.e4m3 import largest_change
from trtforge.ground.errors import ForgeError

#: bytes handled at once
BAND = 16 * 2**20


@dataclass(frozen=True)
class Tensor:
    """A tensor to write; ``pieces`` yields its bits in order when the writer gets to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]

    @property
    def nbytes(self) -> int:
        count = BITS[self.dtype].itemsize
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Part:
    """Rows ``begin`` to ``end`` of a linear; rows past its last one are zeros."""

    module: str
    begin: int
    end: int


@dataclass
class Requantized:
    """What the conversion changes: weights that are rounded a second time, with the largest relative change of a
    normal value, and layers whose keys and values were calibrated with scales of their own."""

    linears: set[str] = field(default_factory=set)
    weights: int = 0
    largest: float = 0.0
    kv_layers: set[str] = field(default_factory=set)


def rank_tensors(source: Checkpoint, rank: Rank, requantized: Requantized) -> list[Tensor]:
    """Everything that ``rank<N>.safetensors`` holds, sorted by name; fills in ``requantized``.

    Raises:
        ForgeError: ``TF-BLD-032`` a tensor is missing, ``TF-BLD-033`` linears that TensorRT-LLM fuses are
            stored in different forms.
    """
    return sorted(_Plan(source, rank, requantized).tensors(), key=lambda tensor: tensor.name)


class _Plan:
    def __init__(self, source: Checkpoint, rank: Rank, requantized: Requantized) -> None:
        self.source, self.rank, self.requantized = source, rank, requantized
        self.config = source.config

    def tensors(self) -> Iterator[Tensor]:
        rank, config = self.rank, self.config
        share = -(-config.vocab // rank.tp)
        vocabulary = [(rank.tp_rank * share, (rank.tp_rank + 1) * share)]
        if rank.first:
            yield self._rows("transformer.vocab_embedding.weight", "model.embed_tokens.weight", vocabulary)
        for local, layer in enumerate(layers_of(config.layers, rank.pp, rank.pp_rank)):
            yield from self._layer(f"transformer.layers.{local}", f"model.layers.{layer}")
        if rank.last:
            yield self._rows("transformer.ln_f.weight", "model.norm.weight")
            if self.source.has("lm_head.weight"):
                yield from self._linear("lm_head", [Part("lm_head", *vocabulary[0])])
            else:
                yield self._rows("lm_head.weight", "model.embed_tokens.weight", vocabulary)

    def _layer(self, out: str, name: str) -> Iterator[Tensor]:
        config, rank, head = self.config, self.rank, self.config.head_size
        yield self._rows(f"{out}.input_layernorm.weight", f"{name}.input_layernorm.weight")
        yield self._rows(f"{out}.post_layernorm.weight", f"{name}.post_attention_layernorm.weight")
        if config.qk_norm:  # over the values of a head: every rank has the whole
            for part in "qk":
                yield self._rows(f"{out}.attention.{part}_layernorm.weight", f"{name}.self_attn.{part}_norm.weight")
        queries = config.heads // rank.tp
        first = rank.tp_rank * queries
        heads = kv_heads_of(config.kv_heads, rank.tp, rank.tp_rank)
        spans = ((first, first + queries), (heads.start, heads.stop), (heads.start, heads.stop))
        modules = [(f"{name}.self_attn.{part}_proj", 0) for part in "qkv"]
        if config.fused:
            starts = (0, config.heads, config.heads + config.kv_heads)
            modules = [(f"{name}.self_attn.qkv_proj", start) for start in starts]
        parts = [
            Part(module, (start + begin) * head, (start + end) * head)
            for (module, start), (begin, end) in zip(modules, spans, strict=True)
        ]
        yield from self._linear(f"{out}.attention.qkv", parts)
        width = queries * head
        dense = [Part(f"{name}.self_attn.o_proj", 0, config.hidden)]
        yield from self._linear(f"{out}.attention.dense", dense, (rank.tp_rank * width, (rank.tp_rank + 1) * width))
        if self.source.kv_algorithm is not None:
            yield self.numbers(f"{out}.attention.kv_cache_scaling_factor", [self._kv_scale(name)])
        ffn = config.ffn // rank.tp
        begin, end = rank.tp_rank * ffn, (rank.tp_rank + 1) * ffn
        if config.fused:  # TensorRT-LLM has the rows of up above those of gate
            both, half = f"{name}.mlp.gate_up_proj", config.ffn
            yield from self._linear(f"{out}.mlp.fc", [Part(both, half + begin, half + end), Part(both, begin, end)])
        else:
            yield from self._linear(f"{out}.mlp.fc", [Part(f"{name}.mlp.gate_proj", begin, end)])
            yield from self._linear(f"{out}.mlp.gate", [Part(f"{name}.mlp.up_proj", begin, end)])
        yield from self._linear(f"{out}.mlp.proj", [Part(f"{name}.mlp.down_proj", 0, config.hidden)], (begin, end))

    def _kv_scale(self, name: str) -> float:
        """One scale for keys and values, the larger: TensorRT-LLM's attention has one. A cast cache stores none."""
        scales = [f"{name}.self_attn.{kind}_proj.{kind}_scale" for kind in "kv"]
        own = [self.source.scalar(scale) for scale in scales if self.source.has(scale)]
        if len(set(own)) > 1:
            self.requantized.kv_layers.add(name)
        return max(own, default=1.0)

    def _rows(self, out: str, name: str, spans: Sequence[tuple[int, int]] | None = None) -> Tensor:
        """Rows of a tensor as they are, in the order of ``spans``; default: all of it."""
        values = self.source.read(name)
        spans = [(0, values.shape[0])] if spans is None else spans
        shape = (sum(end - begin for begin, end in spans), *values.shape[1:])
        dtype = self.source.headers[name].dtype
        return Tensor(out, dtype, shape, lambda: bands(values, spans, None))

    def _linear(self, out: str, parts: list[Part], columns: tuple[int, int] | None = None) -> Iterator[Tensor]:
        """A linear of ``parts`` one below the other, of which this rank has the given columns of K (default: all)."""
        kinds = {self.source.quantized(part.module) for part in parts}
        if len(kinds) > 1:
            raise self.unlike(out, parts, "some are quantized and some are excluded", {})
        format = format_named(self.source.row.layout if kinds.pop() else UNQUANTIZED)
        yield from format.shard(self, out, parts, columns)
        if self.source.has(f"{parts[0].module}.bias"):
            yield self._bias(f"{out}.bias", parts)

    def _bias(self, out: str, parts: list[Part]) -> Tensor:
        names = [f"{part.module}.bias" for part in parts]
        values = [self.source.read(name) for name in names]

        def pieces() -> Iterator[Array]:
            for part, value in zip(parts, values, strict=True):
                yield from bands(value, [(part.begin, part.end)], None)

        shape = (sum(part.end - part.begin for part in parts),)
        return Tensor(out, self.source.headers[names[0]].dtype, shape, pieces)

    def stack(
        self,
        out: str,
        parts: Sequence[Part],
        leaf: str,
        columns: tuple[int, int] | None,
        *,
        rows: int = 1,
        dtype: str | None = None,
        tables: Mapping[str, Array] | None = None,
    ) -> Tensor:
        """``leaf`` of each part below the other. ``rows`` rows of the linear lie in one stored row."""
        values = [self.source.read(f"{part.module}.{leaf}") for part in parts]
        spans = [(part.begin // rows, part.end // rows) for part in parts]
        width = values[0].shape[1] if columns is None else columns[1] - columns[0]

        def pieces() -> Iterator[Array]:
            for part, value, span in zip(parts, values, spans, strict=True):
                table = (tables or {}).get(part.module)
                for band in bands(value, [span], columns):
                    yield band if table is None else table[band]

        stored = dtype or self.source.headers[f"{parts[0].module}.{leaf}"].dtype
        return Tensor(out, stored, (sum(end - begin for begin, end in spans), width), pieces)

    def rounded_again(self, part: Part, ratio: float) -> None:
        """Record that a part's weights are rounded again under a scale 1/ratio times theirs."""
        self.requantized.linears.add(part.module)
        self.requantized.weights += (part.end - part.begin) * int(self.source.read(f"{part.module}.weight").shape[1])
        self.requantized.largest = max(self.requantized.largest, largest_change(ratio))

    @property
    def group(self) -> int | None:
        """Values that share a scale, as the checkpoint says."""
        return self.source.group

    def scalars(self, parts: Sequence[Part], leaf: str) -> dict[str, float]:
        """The one value of each part's ``leaf``, by module."""
        return {part.module: self.source.scalar(f"{part.module}.{leaf}") for part in parts}

    def widened(self, tensor: Tensor) -> Tensor:
        return Tensor(
            tensor.name, "F32", tensor.shape, lambda: (widen(piece, tensor.dtype) for piece in tensor.pieces())
        )

    def numbers(self, out: str, values: Sequence[float]) -> Tensor:
        """A tensor of these float32 values."""
        array = np.array(values, dtype=np.float32)
        return Tensor(out, "F32", array.shape, lambda: iter((array,)))

    def unlike(self, out: str, parts: Sequence[Part], how: str, numbers: Mapping[str, float]) -> ForgeError:
        """The refusal of parts that cannot be one linear."""
        modules = [part.module for part in parts]
        return ForgeError(
            "TF-BLD-033",
            f"{', '.join(modules)} cannot be one linear: {how}",
            asked=out,
            numbers=dict(numbers),
            why="TensorRT-LLM computes them as one product with one form and one set of global scales.",
            remedies=[
                "exclude all of them or none (quantize.exclude)",
                "quantize the unquantized model with trtforge, which gives them common scales",
            ],
        )

    def input_factors(self, out: str, parts: Sequence[Part], columns: tuple[int, int] | None) -> Tensor:
        """Factors of the input's channels; where they were folded into the norm before, TensorRT-LLM wants ones."""
        width = self.source.read(f"{parts[0].module}.weight").shape[1]
        begin, end = columns or (0, width)
        names = [f"{part.module}.{INPUT_FACTORS}" for part in parts]
        present = [self.source.read(name) for name in names if self.source.has(name)]
        if present and (len(present) < len(parts) or any(not np.array_equal(present[0], other) for other in present)):
            raise self.unlike(out, parts, f"their inputs have different factors ({INPUT_FACTORS})", {})
        if present:
            dtype = self.source.headers[names[0]].dtype
            values = present[0][begin:end]
        else:
            dtype = {"bfloat16": "BF16", "float16": "F16"}.get(self.config.dtype, "F32")
            one = {"BF16": 0x3F80, "F16": 0x3C00, "F32": 1.0}[dtype]
            values = np.full(end - begin, one, dtype=BITS[dtype])
        return Tensor(out, dtype, (end - begin,), lambda: iter((values,)))


def bands(values: Array, spans: Sequence[tuple[int, int]], columns: tuple[int, int] | None) -> Iterator[Array]:
    """Rows by spans, then columns, some megabytes at a time; rows past the end are zeros."""
    view = values if columns is None else values[:, columns[0] : columns[1]]
    row = max(1, int(np.prod(view.shape[1:], dtype=np.int64)) * view.itemsize)
    step = max(1, BAND // row)
    for begin, end in spans:
        last = min(end, len(view))
        for start in range(begin, last, step):
            yield np.ascontiguousarray(view[start : min(start + step, last)])
        missing = end - max(begin, last)
        if missing > 0:
            yield np.zeros((missing, *view.shape[1:]), dtype=view.dtype)
