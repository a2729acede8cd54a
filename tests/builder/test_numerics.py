"""The graph computes the checkpoint: every rope type, stored type and type of the pool; classes: ``tests/families``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.graphs.build import build_graph
from tests.builder.quantized_tiny import Quantizer, expected_logits
from tests.builder.reference_ops import PagedRunner
from tests.support.tiny import write_tiny_llama

RNG = np.random.default_rng(7)
PROMPTS = [[int(t) for t in RNG.integers(0, 512, n)] for n in (19, 37, 5)]


def run_ragged(directory: Path, info: Any) -> list[np.ndarray]:
    """Prefill in uneven chunks mixed with decode steps; logits of every token of every prompt."""
    runner = PagedRunner(directory, info)
    parts: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    a, b, c = PROMPTS
    steps = [
        {0: a[:17], 1: b[:9]},
        {0: a[17:18], 1: b[9:36], 2: c[:4]},
        {2: c[4:], 1: b[36:], 0: a[18:]},
    ]
    for step in steps:
        for request, logits in runner.step(step).items():
            parts[request].append(logits)
    return [np.concatenate(parts[request]) for request in range(3)]


def compare(directory: Path, quantized: Quantizer | None = None, *, tolerance: float = 2e-4, **options: Any) -> None:
    info = build_graph(directory, directory, dtype="float32", block_size=16, **options)
    expected = expected_logits(directory, PROMPTS, quantized)
    for got, want in zip(run_ragged(directory, info), expected, strict=True):
        assert got.dtype == np.float32
        error = np.abs(got - want) / np.abs(want).max()
        assert error.max() < tolerance and np.median(error) < 1e-6


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_types(tmp_path: Path, kind: str) -> None:
    compare(write_tiny_llama(tmp_path, rope=ROPES[kind]))


def test_biases_untied_head_and_wide_heads(tmp_path: Path) -> None:
    compare(write_tiny_llama(tmp_path, bias=True, tie=False, head_size=80, heads=2, kv_heads=1, shards=3))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_stored_types(tmp_path: Path, dtype: str) -> None:
    compare(write_tiny_llama(tmp_path, dtype=dtype, layers=1))


def test_an_fp8_pool_with_scales_stays_near_the_exact_one(tmp_path: Path) -> None:
    quantized = Quantizer(write_tiny_llama(tmp_path), "none", kv_fp8=True)
    info = build_graph(tmp_path, tmp_path, dtype="float32", block_size=16)
    assert info.kv_cache == {"format": "fp8", "block_size": 16, "scales": "calibrated"}
    assert len(quantized.kv_scales) == 4
    expected = expected_logits(tmp_path, PROMPTS)
    for got, want in zip(run_ragged(tmp_path, info), expected, strict=True):
        assert 1e-4 < np.abs(got - want).max() / np.abs(want).max() < 0.2


def test_bfloat16_and_float16_emissions_are_near_float32(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, layers=1)
    expected = expected_logits(tmp_path, PROMPTS)
    for dtype in ("bfloat16", "float16"):
        info = build_graph(tmp_path, tmp_path, dtype=dtype, block_size=16)
        for got, want in zip(run_ragged(tmp_path, info), expected, strict=True):
            assert got.dtype == np.float32
            assert np.abs(got - want).max() / np.abs(want).max() < 0.05


def test_hidden_states_are_outputs_when_asked_for(tmp_path: Path) -> None:
    info = build_graph(write_tiny_llama(tmp_path), tmp_path, dtype="float32", block_size=16, hidden_states=(0, 2))
    assert info.hidden_states == (0, 2)
    runner = PagedRunner(tmp_path, info)
    names = [output.name for output in runner.session.proto_.graph.output]
    assert {"hidden_states_0", "hidden_states_2"} <= set(names)
    runner.step({0: PROMPTS[0]})
