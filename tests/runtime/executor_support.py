"""Tiny engines of every format, and steps to drive them with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from builder.graphs.build import build_graph
from runtime.executors.base import StepBatch
from runtime.executors.torch_executor import TorchExecutor
from tests.builder.quantized_tiny import Quantizer, expected_logits
from tests.support.engines import build_engine
from tests.support.tiny import write_tiny_llama
from trtforge.recipe.schema import Build, KvCache, Limits

LIMITS = Limits(max_batch_size=8, max_num_tokens=128, max_seq_len=256)
RNG = np.random.default_rng(11)
PROMPTS = [[int(t) for t in RNG.integers(3, 512, n)] for n in (19, 37, 5)]


def tiny_engine(
    directory: Path,
    fmt: str = "none",
    *,
    dtype: str | None = None,
    kv: str | None = None,
    block_size: int = 16,
    kv_fp8: bool = False,
    graph: dict[str, Any] | None = None,
    **model: Any,
) -> tuple[Path, Quantizer]:
    """An engine directory of a tiny model, and what its weights mean."""
    quantizer = Quantizer(write_tiny_llama(directory / "model", **model), fmt, kv_fp8=kv_fp8)
    build_graph(
        directory / "model",
        directory / "model",
        dtype=dtype,
        kv_cache_format=kv,
        block_size=block_size,
        **(graph or {}),
    )
    build = Build(limits=LIMITS, kv_cache=KvCache(block_size=block_size, memory="4MiB"))
    build_engine(directory / "model", directory / "engine", name="tiny", build=build)
    return directory / "engine", quantizer


def reference(engine: Path, quantizer: Quantizer, prompts: Sequence[list[int]] = tuple(PROMPTS)) -> list[np.ndarray]:
    """What transformers computes in float32 with the checkpoint's meaning: [tokens, V] a prompt."""
    return expected_logits(engine.parent / "model", list(prompts), quantizer)


def make_batch(
    parts: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    logits: Sequence[int] | None = None,
    copies: Sequence[tuple[int, int]] = (),
) -> StepBatch:
    """A step from (new tokens, tokens in the context before, pool blocks) a request; by default all logits."""
    lengths = [len(tokens) for tokens, _, _ in parts]
    starts = [start for _, start, _ in parts]
    width = max(len(blocks) for _, _, blocks in parts)
    table = np.full((len(parts), width), -1, dtype=np.int32)
    for row, (_, _, blocks) in zip(table, parts, strict=True):
        row[: len(blocks)] = blocks
    return StepBatch(
        input_ids=np.concatenate([np.asarray(tokens, dtype=np.int64) for tokens, _, _ in parts]),
        positions=np.concatenate(
            [np.arange(start, start + n) for (_, start, _), n in zip(parts, lengths, strict=True)]
        ),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        sequence_lengths=np.add(starts, lengths).astype(np.int32),
        block_table=table,
        logit_indices=np.arange(sum(lengths)) if logits is None else np.asarray(logits, dtype=np.int64),
        block_copies=copies,
    )


def blocks_of(request: int, count: int = 6) -> list[int]:
    """Scattered pool blocks of a request, different for each."""
    return [(5 * request + 31 * i) % 47 + 47 * request for i in range(count)]


def run_whole(executor: TorchExecutor, prompts: Sequence[list[int]] = tuple(PROMPTS)) -> list[torch.Tensor]:
    """Each prompt alone, in one step."""
    return [executor.execute(make_batch([(prompt, 0, blocks_of(i))])).clone() for i, prompt in enumerate(prompts)]


def run_ragged(executor: TorchExecutor, prompts: Sequence[list[int]] = tuple(PROMPTS)) -> list[torch.Tensor]:
    """Chunked prefill, decode steps and other requests mixed in uneven steps."""
    a, b, c = prompts
    steps = [
        [(0, a[:17], 0), (1, b[:9], 0)],
        [(1, b[9:10], 9), (0, a[17:18], 17), (2, c[:4], 0)],
        [(1, b[10:36], 10)],
        [(2, c[4:], 4), (1, b[36:], 36), (0, a[18:], 18)],
    ]
    parts: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for step in steps:
        logits = executor.execute(make_batch([(tokens, start, blocks_of(i)) for i, tokens, start in step])).clone()
        for (request, *_), rows in zip(step, logits.split([len(t) for _, t, _ in step]), strict=True):
            parts[request].append(rows)
    return [torch.cat(parts[i]) for i in range(3)]
