"""The ``native`` attention mode: the same decoder on padded batches, with standard operators only.

Requests are rows of a padded batch [B, Q] with one linear cache each; TensorScatter writes the step's
keys and values, Attention (opset 24) reads them under a mask made from the positions. No operator of
ours is in the graph, so compilers without plugins take it, and in float32 ONNX Runtime runs it: an
independent check of the blocks that both modes share.

Inputs: input_ids and positions int64 [B, Q]; write_indices int64 [B] (slot of a request's first new
token); logit_indices int64 [L] into the B x Q tokens; key_cache_i and value_cache_i [B, K, C, E].
Outputs: logits float32 [L, V] and the caches. A padded token's position may be anything up to C - 1:
what it writes lies behind every real position and is overwritten before it is seen.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from builder.graphs.blocks import Blocks
from builder.graphs.emitter import scope_of


class NativeBlocks(Blocks):
    """:class:`Blocks` on [B, Q, D] with linear caches; ``block_size`` and scales of a pool do not apply."""

    def declare_inputs(self) -> None:
        """The graph's inputs, caches last, and the masks that the layers share, one for each window."""
        emitter = self.emitter
        emitter.input("input_ids", TensorProto.INT64, ["B", "Q"])
        emitter.input("positions", TensorProto.INT64, ["B", "Q"])
        emitter.input("write_indices", TensorProto.INT64, ["B"])
        emitter.input("logit_indices", TensorProto.INT64, ["L"])
        for layer in range(self.config.layers):
            for part in ("key", "value"):
                emitter.input(f"{part}_cache_{layer}", self.pool_type, self.cache_shape)
        self._write_masks()

    @property
    def token_shape(self) -> list[int | str]:
        """Axes in front of a token's values."""
        return ["B", "Q"]

    @property
    def cache_shape(self) -> list[int | str]:
        """[B, K, C, E] of one layer's keys or values."""
        return ["B", self.config.kv_heads, "C", self.config.head_size]

    def _write_masks(self) -> None:
        """bool [B, 1, Q, C] by window: slot j is visible to position p when j <= p (and p - window < j)."""
        emitter, scope = self.emitter, "/model/causal_mask"
        shape = emitter.node("Shape", ["key_cache_0"], scope, start=2, end=3)
        capacity = emitter.node("Squeeze", [shape, emitter.axes(0)], scope)
        zero, one = (emitter.constant(f"int_{i}", np.array(i, dtype=np.int64)) for i in (0, 1))
        slots = emitter.node("Range", [zero, capacity, one], scope)
        position = emitter.node("Unsqueeze", ["positions", emitter.axes(2)], scope, label="Unsqueeze_positions")
        past = emitter.node("LessOrEqual", [slots, position], scope)
        self.masks = {window: self._mask(window, past, slots, position) for window in sorted(set(self.config.windows))}

    def _mask(self, window: int, past: str, slots: str, position: str) -> str:
        emitter, scope, label = self.emitter, "/model/causal_mask", "Unsqueeze"
        if window:
            size = emitter.constant("sliding_window", np.array(window, dtype=np.int64))
            first = emitter.node("Sub", [position, size], scope)
            recent = emitter.node("Greater", [slots, first], scope)
            past = emitter.node("And", [past, recent], scope)
            label = "Unsqueeze_sliding" if self.config.full_attention_layers else label
        return emitter.node("Unsqueeze", [past, emitter.axes(1)], scope, label=label)

    def rotate(self, x: str, caches: tuple[str, str], heads: int, scope: str, label: str) -> str:
        """Rotary embedding of [B, Q, heads*E]."""
        return self.emitter.node(
            "RotaryEmbedding",
            [x, *caches],
            scope,
            label=f"RotaryEmbedding_{label}",
            **self.rotation(heads),
        )

    def batch_caches(self, cache: str, scope: str, label: str) -> str:
        """cos or sin [B, Q, E/2] as it is: the batch axis is there."""
        return cache

    def _split_heads(self, x: str, heads: int, scope: str, label: str) -> str:
        """[B, Q, heads*E] to [B, heads, Q, E]."""
        emitter = self.emitter
        shape = emitter.constant(f"split_{heads}", np.array([0, 0, heads, self.config.head_size], dtype=np.int64))
        split = emitter.node("Reshape", [x, shape], scope, label=f"Reshape_{label}")
        return emitter.node("Transpose", [split], scope, label=f"Transpose_{label}", perm=[0, 2, 1, 3])

    def attend(self, module: str, query: str, key: str, value: str, layer: int) -> str:
        """Write keys and values into the caches, then attend over them."""
        config, emitter, scope = self.config, self.emitter, scope_of(module)
        self.kv_scale_inputs(module)
        stored = []
        for part, x in (("key", key), ("value", value)):
            new = self._split_heads(x, config.kv_heads, scope, part)
            new = emitter.cast(new, self.model_type, self.pool_type, scope, f"Cast_{part}")
            cache, out = f"{part}_cache_{layer}", f"{part}_cache_{layer}_out"
            emitter.node(
                "TensorScatter",
                [cache, new, "write_indices"],
                scope,
                label=f"TensorScatter_{part}",
                output=out,
                axis=-2,
                mode="linear",
            )
            emitter.output(out, self.pool_type, self.cache_shape)
            stored.append(emitter.cast(out, self.pool_type, self.model_type, scope, f"Cast_{part}_read"))
        split = self._split_heads(query, config.heads, scope, "query")
        inputs = [split, *stored, self.masks[config.windows[layer]]]
        attended = emitter.node("Attention", inputs, scope, scale=config.score_factor)
        joined = emitter.node("Transpose", [attended], scope, label="Transpose_attention", perm=[0, 2, 1, 3])
        width = config.heads * config.head_size
        shape = emitter.constant("join_heads", np.array([0, 0, width], dtype=np.int64))
        return emitter.node("Reshape", [joined, shape], scope, label="Reshape_attention")

    def pick_rows(self, hidden: str) -> str:
        """[B, Q, D] to the L rows wanted."""
        shape = self.emitter.constant("flatten_tokens", np.array([-1, self.config.hidden], dtype=np.int64))
        flat = self.emitter.node("Reshape", [hidden, shape], "/model", label="Reshape_tokens")
        return super().pick_rows(flat)
