"""The trtforge operators in numpy, for onnx's reference evaluator: a second reading of the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_23
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_23

E4M3 = ml_dtypes.float8_e4m3fn
E2M1 = ml_dtypes.float4_e2m1fn


def e4m3(values: np.ndarray) -> np.ndarray:
    """Saturating cast to E4M3 and back."""
    return np.clip(values, -448, 448).astype(E4M3).astype(np.float32)


def fake_nvfp4(x: np.ndarray, scale: float, block: int = 16) -> np.ndarray:
    """NVFP4 quantize and de-quantize along the last axis."""
    blocks = x.astype(np.float32).reshape(-1, block)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    factor = e4m3(np.minimum(largest / np.float32(6) / np.float32(scale), 448)) * np.float32(scale)
    factor = np.where(factor == 0, np.float32(1), factor)
    values = np.clip(blocks / factor, -6, 6).astype(E2M1).astype(np.float32) * factor
    return values.reshape(x.shape).astype(x.dtype)


class DequantizeLinear(DequantizeLinear_23):
    """Opset 24 otherwise falls back to the implementation of opset 21, which knows no output_dtype."""

    op_domain = ""


class QuantizeLinear(QuantizeLinear_23):
    op_domain = ""


class DynamicBlockQuantize(OpRun):
    op_domain = "trtforge"

    def _run(self, x: np.ndarray, input_scale: np.ndarray, block_size: int = 16) -> tuple[np.ndarray]:
        return (fake_nvfp4(x, float(input_scale), block_size),)


class PagedAttention(OpRun):
    op_domain = "trtforge"

    def _run(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        pool: np.ndarray,
        query_start: np.ndarray,
        lengths: np.ndarray,
        table: np.ndarray,
        k_scale: np.ndarray | None = None,
        v_scale: np.ndarray | None = None,
        tree_mask: np.ndarray | None = None,
        num_heads: int = 0,
        num_kv_heads: int = 0,
        head_size: int = 0,
        scale: float = 0.0,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        size, slots = head_size, pool.shape[3]
        scale = scale or size**-0.5
        pool = pool.copy()
        scales = [1.0 if s is None else float(s) for s in (k_scale, v_scale)]
        quantized = pool.dtype == E4M3
        out = np.zeros(query.shape, dtype=np.float32)
        for b in range(len(lengths)):
            first, last = int(query_start[b]), int(query_start[b + 1])
            length = int(lengths[b])
            start = length - (last - first)
            for t in range(first, last):
                position = start + t - first
                block, slot = int(table[b, position // slots]), position % slots
                for part, rows in enumerate((key, value)):
                    vector = rows[t].astype(np.float32).reshape(num_kv_heads, size)
                    if quantized:
                        vector = np.clip(vector / scales[part], -448, 448)
                    pool[block, part, :, slot] = vector.astype(pool.dtype)
            context = []
            for part in range(2):
                blocks = [pool[int(table[b, i]), part].astype(np.float32) for i in range(-(-length // slots))]
                joined = np.concatenate(blocks, axis=1)[:, :length] if blocks else np.zeros((num_kv_heads, 0, size))
                context.append(joined * (scales[part] if quantized else 1.0))
            for t in range(first, last):
                position = start + t - first
                seen = np.arange(length) <= position
                if sliding_window:
                    seen &= np.arange(length) > position - sliding_window
                if tree_mask is not None:
                    seen[start:] = tree_mask[t, : last - first].astype(bool)
                for head in range(num_heads):
                    group = head // (num_heads // num_kv_heads)
                    row = query[t].astype(np.float32).reshape(num_heads, size)[head]
                    scores = context[0][group] @ row * scale
                    if soft_cap:
                        scores = soft_cap * np.tanh(scores / soft_cap)
                    weights = np.where(seen, np.exp(scores - scores[seen].max()), 0)
                    out[t, head * size : (head + 1) * size] = weights / weights.sum() @ context[1][group]
        return out.astype(query.dtype), pool


def evaluator(directory: Path) -> ReferenceEvaluator:
    """The reference evaluator over the graph in ``directory``, weights loaded."""
    model = onnx.load(str(directory / "model.onnx"))
    return ReferenceEvaluator(model, new_ops=[PagedAttention, DynamicBlockQuantize, DequantizeLinear, QuantizeLinear])


def empty_pools(info: Any, blocks: int) -> dict[str, np.ndarray]:
    """Zeroed pools for every layer, in the graph's format."""
    dtype = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "fp8": E4M3}
    shape = (blocks, 2, info.num_kv_heads, info.kv_cache["block_size"], info.head_size)
    return {
        f"kv_pool_{layer}": np.zeros(shape, dtype=dtype[info.kv_cache["format"]]) for layer in range(info.num_layers)
    }


class PagedRunner:
    """Feeds ragged steps to a graph and keeps the pools; requests get blocks in a scattered order."""

    def __init__(self, directory: Path, info: Any, blocks: int = 16) -> None:
        self.session = evaluator(directory)
        self.info, self.slots = info, info.kv_cache["block_size"]
        self.pools = empty_pools(info, blocks)
        self.free = [(5 * i + 3) % blocks for i in range(blocks)]
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, new_tokens: dict[int, list[int]]) -> dict[int, np.ndarray]:
        """Append tokens to requests (by number); returns logits [new tokens, V] of each."""
        ids, positions, starts = [], [], [0]
        for request, tokens in new_tokens.items():
            length = self.lengths.get(request, 0)
            ids += tokens
            positions += range(length, length + len(tokens))
            starts.append(len(ids))
            self.lengths[request] = length + len(tokens)
            blocks = self.tables.setdefault(request, [])
            while len(blocks) * self.slots < self.lengths[request]:
                blocks.append(self.free.pop())
        width = max(len(self.tables[request]) for request in new_tokens)
        table = np.full((len(new_tokens), width), -1, dtype=np.int32)
        for row, request in enumerate(new_tokens):
            table[row, : len(self.tables[request])] = self.tables[request]
        feeds = {
            "input_ids": np.array(ids, dtype=np.int64),
            "positions": np.array(positions, dtype=np.int64),
            "query_start": np.array(starts, dtype=np.int32),
            "sequence_lengths": np.array([self.lengths[request] for request in new_tokens], dtype=np.int32),
            "block_table": table,
            "logit_indices": np.arange(len(ids), dtype=np.int64),
            **self.pools,
        }
        names = [output.name for output in self.session.proto_.graph.output]
        results = dict(zip(names, self.session.run(None, feeds), strict=True))
        self.pools = {name: results[f"{name}_out"] for name in self.pools}
        logits = results["logits"]
        return {r: logits[starts[i] : starts[i + 1]] for i, r in enumerate(new_tokens)}
