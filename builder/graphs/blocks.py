"""Blocks that decoder families share: token-packed attention with a paged KV pool, norms, gated MLP, logits.

Everything runs on [T, …]: all tokens of a step along one axis, whichever request they belong to. What
depends on that layout is a method of its own, which :mod:`builder.graphs.native` replaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from builder import opset
from builder.graphs.emitter import Emitter, scope_of
from builder.graphs.info import GraphInfo, LinearInfo
from builder.graphs.linears import LinearWriter
from builder.graphs.rope import inverse_frequencies
from builder.graphs.tensors import CheckpointTensors
from trtforge.formats import format_named
from trtforge.models.record import Model

_NUMPY: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


class Blocks:
    """The shared blocks of one graph. Methods take and return names of values.

    Args:
        block_size: S, slots in a pool block.
        pool_type: ONNX element type of the pools.
        kv_scales: write the calibrated FP8 scales of the pools where the checkpoint has them.
        tree_mask: declare the input of that name and hand it to every attention.
    """

    def __init__(
        self,
        emitter: Emitter,
        tensors: CheckpointTensors,
        linears: LinearWriter,
        config: Model,
        *,
        block_size: int,
        pool_type: int,
        kv_scales: bool,
        tree_mask: bool = False,
    ) -> None:
        self.emitter, self.tensors, self.linears, self.config = emitter, tensors, linears, config
        self.model_type = linears.model_type
        self.block_size, self.pool_type, self.kv_scales = block_size, pool_type, kv_scales
        self.tree_mask = tree_mask

    def info(self, mode: str, dtype: str, kv_format: str, scales: str) -> GraphInfo:
        """What graph.json says of the graph that was written."""
        config, written = self.config, self.linears.written
        formats = sorted({linear.format for linear in written} - {"none"})
        groups = sorted({linear.group for linear in written if linear.group is not None})
        used = {(node.domain, node.op_type) for node in self.emitter.graph.node if node.domain}
        return GraphInfo(
            architecture=config.family,
            hf_architecture=config.architecture,
            mode=mode,
            dtype=dtype,
            vocab_size=config.vocab,
            num_layers=config.layers,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_heads=config.heads,
            num_kv_heads=config.kv_heads,
            head_size=config.head_size,
            max_position_embeddings=config.max_positions,
            sliding_window=config.sliding_window,
            full_attention_layers=config.full_attention_layers,
            kv_cache={"format": kv_format, "block_size": self.block_size, "scales": scales},
            quant_format=formats[0] if len(formats) == 1 else ("mixed" if formats else "none"),
            group_size=groups[0] if len(groups) == 1 else None,
            linears=tuple(
                LinearInfo(
                    linear.name,
                    linear.shape,
                    linear.format,
                    linear.group,
                    format_named(linear.format).rounds_input(linear.parts),
                )
                for linear in written
            ),
            ops={f"{domain}::{name}": opset.SINCE[name][-1] for domain, name in sorted(used)},
            tree_mask=self.tree_mask,
            accounted=dict(sorted(self.tensors.accounted.items())),
        )

    def declare_inputs(self) -> None:
        """The graph's inputs, pools last."""
        emitter, config = self.emitter, self.config
        emitter.input("input_ids", TensorProto.INT64, ["T"])
        emitter.input("positions", TensorProto.INT64, ["T"])
        emitter.input("query_start", TensorProto.INT32, ["B_plus_1"])
        emitter.input("sequence_lengths", TensorProto.INT32, ["B"])
        emitter.input("block_table", TensorProto.INT32, ["B", "M"])
        emitter.input("logit_indices", TensorProto.INT64, ["L"])
        if self.tree_mask:
            emitter.input("tree_mask", TensorProto.UINT8, ["T", "W"])
        for layer in range(config.layers):
            emitter.input(f"kv_pool_{layer}", self.pool_type, self.pool_shape)

    @property
    def token_shape(self) -> list[int | str]:
        """Axes in front of a token's values."""
        return ["T"]

    @property
    def pool_shape(self) -> list[int | str]:
        """[N, 2, K, S, E]; dimension 1 holds keys (0) and values (1)."""
        return ["N", 2, self.config.kv_heads, self.block_size, self.config.head_size]

    def begin(self) -> tuple[str, tuple[str, str]]:
        """Inputs, the output ``logits`` and the first nodes of a decoder: its embeddings ``hidden_states_0``, and the
        caches of its rotary embedding."""
        self.declare_inputs()
        self.emitter.output("logits", TensorProto.FLOAT, ["L", self.config.vocab])
        hidden = self.embedding("model.embed_tokens", "input_ids", "hidden_states_0")
        return hidden, self.rotary_caches("/model/rotary_emb")

    def embedding(self, module: str, token_ids: str, output: str) -> str:
        """Rows of the embedding table in the model's type, times the model's factor: [T, D]."""
        weight, scope = f"{module}.weight", scope_of(module)
        info = self.tensors.take(weight, (self.config.vocab, self.config.hidden))
        table = self.emitter.external(weight, info)
        have = self.emitter.types[table]
        factor = self.config.factors.embedding
        own = output if factor == 1.0 else None
        # Gather first, cast after: only the rows of the step are converted.
        if have == self.model_type:
            rows = self.emitter.node("Gather", [table, token_ids], scope, output=own, axis=0)
        else:
            rows = self.emitter.node("Gather", [table, token_ids], scope, axis=0)
            rows = self.emitter.node("Cast", [rows], scope, output=own, to=self.model_type)
        return rows if factor == 1.0 else self.scaled(rows, factor, f"{scope}/factor", output)

    def scaled(self, x: str, factor: float, scope: str, output: str | None = None) -> str:
        """x times a number, in float32 where the model's type does not hold the number exactly."""
        emitter = self.emitter
        exact = float(np.float32(factor).astype(_NUMPY[self.model_type])) == factor
        if exact or self.model_type == TensorProto.FLOAT:
            number = np.array(factor, dtype=_NUMPY[self.model_type])
            return emitter.node("Mul", [x, emitter.constant(f"factor_{factor!r}", number)], scope, output=output)
        wide = emitter.node("Cast", [x], scope, label="Cast_wide", to=TensorProto.FLOAT)
        number = np.array(factor, dtype=np.float32)
        product = emitter.node("Mul", [wide, emitter.constant(f"factor_{factor!r}", number)], scope)
        return emitter.node("Cast", [product], scope, label="Cast_back", output=output, to=self.model_type)

    def norm(self, module: str, x: str, width: int | None = None) -> str:
        """RMS norm over the last axis of ``width`` values (None: D), statistics in float32."""
        weight, scope = f"{module}.weight", scope_of(module)
        self.tensors.take(weight, (width or self.config.hidden,))
        scale = self.linears.in_model_type(weight, scope)
        return self.emitter.node(
            "RMSNormalization", [x, scale], scope, axis=-1, epsilon=self.config.norm_eps, stash_type=1
        )

    def rotary_caches(self, scope: str) -> tuple[str, str]:
        """cos and sin of positions x inverse frequencies: [1, T, R/2], computed in float32, in the model's type.

        R is how many values of a head are rotated.
        """
        emitter = self.emitter
        size = self.config.rotary_size or self.config.head_size
        inv_freq, factor = inverse_frequencies(self.config.rope, size)
        frequencies = emitter.constant("rotary_inv_freq", inv_freq.reshape(1, -1))
        positions = emitter.node("Cast", ["positions"], scope, label="Cast_positions", to=TensorProto.FLOAT)
        last = len(self.token_shape)
        column = emitter.node("Unsqueeze", [positions, emitter.axes(last)], scope, label="Unsqueeze_positions")
        angles = emitter.node("Mul", [column, frequencies], scope, label="Mul_angles")
        caches = []
        for op in ("Cos", "Sin"):
            value = emitter.node(op, [angles], scope)
            if factor != 1.0:
                scaling = emitter.constant("rotary_attention_factor", np.array(factor, dtype=np.float32))
                value = emitter.node("Mul", [value, scaling], scope, label=f"Mul_{op}")
            value = emitter.cast(value, TensorProto.FLOAT, self.model_type, scope, f"Cast_{op}")
            caches.append(self.batch_caches(value, scope, op))
        return caches[0], caches[1]

    def batch_caches(self, cache: str, scope: str, label: str) -> str:
        """cos or sin [T, E/2] with the batch axis that RotaryEmbedding wants."""
        return self.emitter.node("Unsqueeze", [cache, self.emitter.axes(0)], scope, label=f"Unsqueeze_{label}")

    def rotate(self, x: str, caches: tuple[str, str], heads: int, scope: str, label: str) -> str:
        """Rotary embedding of [T, heads*E], first half against second half of each head."""
        emitter = self.emitter
        batched = emitter.node("Unsqueeze", [x, emitter.axes(0)], scope, label=f"Unsqueeze_{label}")
        rotated = emitter.node(
            "RotaryEmbedding",
            [batched, *caches],
            scope,
            label=f"RotaryEmbedding_{label}",
            **self.rotation(heads),
        )
        return emitter.node("Squeeze", [rotated, emitter.axes(0)], scope, label=f"Squeeze_{label}")

    def rotation(self, heads: int) -> dict[str, Any]:
        """Attributes of RotaryEmbedding: the first half of what is rotated of each head against the second."""
        partial = {"rotary_embedding_dim": self.config.rotary_size} if self.config.rotary_size else {}
        return {"num_heads": heads, "interleaved": 0, **partial}

    def head_norm(self, module: str, x: str, heads: int) -> str:
        """RMS norm over each head of [T, heads*E]."""
        size, lead = self.config.head_size, [0] * len(self.token_shape)
        shapes = {"split": [*lead, heads, size], "join": [*lead, heads * size]}
        split, join = (
            self.emitter.constant(f"{label}_{heads}_heads", np.array(shape, dtype=np.int64))
            for label, shape in shapes.items()
        )
        scope = scope_of(module)
        apart = self.emitter.node("Reshape", [x, split], scope, label="Reshape_split")
        return self.emitter.node("Reshape", [self.norm(module, apart, size), join], scope, label="Reshape_join")

    def attention(self, module: str, x: str, caches: tuple[str, str], layer: int, *, reads: int | None = None) -> str:
        """Grouped-query attention of one layer: [T, ``reads``] (None: D) to [T, D]; writes the layer's pool."""
        config, scope = self.config, scope_of(module)
        width, kv_width = config.heads * config.head_size, config.kv_heads * config.head_size
        hidden = config.hidden
        inputs = reads or hidden
        names, rows = ("q_proj", "k_proj", "v_proj"), (width, kv_width, kv_width)
        query, key, value = self.projected(module, names, rows, x, inputs, "qkv_proj", bias=config.attention_bias)
        if config.qk_norm == "width":
            query = self.norm(f"{module}.q_norm", query, width)
            key = self.norm(f"{module}.k_norm", key, kv_width)
        elif config.qk_norm:
            query = self.head_norm(f"{module}.q_norm", query, config.heads)
            key = self.head_norm(f"{module}.k_norm", key, config.kv_heads)
        if not config.rotates or config.rotates[layer]:
            query = self.rotate(query, caches, config.heads, scope, "query")
            key = self.rotate(key, caches, config.kv_heads, scope, "key")
        attended = self.attend(module, query, key, value, layer)
        output = self.tensors.linear(f"{module}.o_proj", (hidden, width), bias=config.o_bias)
        return self.linears.write(output, attended)

    def projected(
        self, module: str, names: Sequence[str], rows: Sequence[int], x: str, inputs: int, fused: str, *, bias: bool
    ) -> list[str]:
        """Linears of one input, ``rows`` wide each: those of ``names``, or the parts of the one called ``fused``."""
        if not self.config.fused:
            shapes = zip(names, rows, strict=True)
            linears = [self.tensors.linear(f"{module}.{name}", (size, inputs), bias=bias) for name, size in shapes]
            return [self.linears.write(linear, x) for linear in linears]
        packed = self.linears.write(self.tensors.linear(f"{module}.{fused}", (sum(rows), inputs), bias=bias), x)
        sizes = self.emitter.constant(f"rows_{'_'.join(map(str, rows))}", np.array(rows, dtype=np.int64))
        scope = scope_of(f"{module}.{fused}")
        parts = [f"{scope}/Split_{name}" for name in names]
        self.emitter.node("Split", [packed, sizes], scope, outputs=parts, axis=-1)
        return parts

    def attend(self, module: str, query: str, key: str, value: str, layer: int) -> str:
        """PagedAttention of one layer over its pool: [T, H*E]."""
        config, emitter, scope = self.config, self.emitter, scope_of(module)
        pool, pool_out = f"kv_pool_{layer}", f"kv_pool_{layer}_out"
        inputs = [query, key, value, pool, "query_start", "sequence_lengths", "block_table"]
        optional = [*self.kv_scale_inputs(module), "tree_mask" if self.tree_mask else ""]
        while optional and not optional[-1]:
            optional.pop()
        attended = emitter.node(
            opset.PAGED_ATTENTION,
            [*inputs, *optional],
            scope,
            domain=opset.DOMAIN,
            outputs=[f"{scope}/{opset.PAGED_ATTENTION}_output_0", pool_out],
            num_heads=config.heads,
            num_kv_heads=config.kv_heads,
            head_size=config.head_size,
            scale=config.score_factor,
            sliding_window=config.windows[layer],
            soft_cap=0.0,
        )
        emitter.output(pool_out, self.pool_type, self.pool_shape)
        return attended

    def kv_scale_inputs(self, module: str) -> list[str]:
        """Names of the calibrated scales of keys and values, or empty names where the pool has none."""
        names = [kv_scale_name(self.tensors, module, part) for part in ("k", "v")]
        if self.kv_scales and all(names):
            scales = []
            for name in names:
                assert name is not None
                info = self.tensors.take(name)
                scalar = self.emitter.external(name, info, shape=())
                scope = scope_of(name)
                scales.append(self.emitter.cast(scalar, self.emitter.types[scalar], TensorProto.FLOAT, scope))
            return scales
        for name in names:
            if name is not None:
                self.tensors.account(name, "the KV pool is not FP8")
        return ["", ""]

    def gated_mlp(self, module: str, x: str, *, bias: bool) -> str:
        """down(SiLU(gate(x)) * up(x))."""
        config, scope = self.config, scope_of(module)
        names, rows = ("gate_proj", "up_proj"), (config.ffn, config.ffn)
        gate, up = self.projected(module, names, rows, x, config.hidden, "gate_up_proj", bias=bias)
        activated = self.emitter.node("Swish", [gate], f"{scope}/act_fn", alpha=1.0)
        product = self.emitter.node("Mul", [activated, up], scope)
        down = self.tensors.linear(f"{module}.down_proj", (config.hidden, config.ffn), bias=bias)
        return self.linears.write(down, product)

    def add(self, x: str, y: str, scope: str, output: str | None = None) -> str:
        """Residual sum in the model's type, ``y`` times the model's factor."""
        if self.config.factors.residual != 1.0:
            y = self.scaled(y, self.config.factors.residual, f"{scope}/factor")
        return self.emitter.node("Add", [x, y], scope, output=output)

    def logits(self, hidden: str, norm: str, head: str, embedding: str) -> None:
        """Final norm and head on the rows ``logit_indices`` only; declares the output float32 [L, V]."""
        config, emitter = self.config, self.emitter
        normed = self.norm(norm, self.pick_rows(hidden))
        shape = (config.vocab, config.hidden)
        own = f"{head}.weight"
        tied = config.tied and f"{head}.weight_scale" not in self.tensors
        if tied and own in self.tensors:
            self.tensors.account(own, f"tied to {embedding}.weight (tie_word_embeddings)")
        linear = self.tensors.linear(head, shape, weight=f"{embedding}.weight" if tied else None)
        factor = config.factors.logits
        result = "logits" if factor == 1.0 else None
        if self.model_type == TensorProto.FLOAT:
            wide = self.linears.write(linear, normed, output=result)
        else:
            wide = self.linears.write(linear, normed)
            wide = emitter.node("Cast", [wide], scope_of(head), output=result, to=TensorProto.FLOAT)
        if factor != 1.0:
            number = emitter.constant("logits_factor", np.array(factor, dtype=np.float32))
            emitter.node("Mul", [wide, number], scope_of(head), label="Mul_factor", output="logits")

    def pick_rows(self, hidden: str) -> str:
        """The rows of the tokens whose logits are wanted: [L, D]."""
        return self.emitter.node("Gather", [hidden, "logit_indices"], "/model", label="Gather_logit_indices", axis=0)


def kv_scale_name(tensors: CheckpointTensors, module: str, part: str) -> str | None:
    """Name of the calibrated scale of keys or values (``part`` k or v) of an attention module, if there is one."""
    for name in (f"{module}.{part}_proj.{part}_scale", f"{module}.{part}_scale"):
        if name in tensors:
            return name
    return None
