"""The native mode in ONNX Runtime (float32): the shared blocks checked by another implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from builder.graphs.build import build_graph
from tests.builder.quantized_tiny import Quantizer, expected_logits
from tests.support.tiny import write_tiny_llama

CAPACITY = 48
RNG = np.random.default_rng(11)
PROMPTS = [[int(t) for t in RNG.integers(0, 512, n)] for n in (19, 37)]


def run(directory: Path, info: Any) -> list[np.ndarray]:
    """Both prompts in chunks, padded to one length a step; logits of every real token."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"])
    shape = (2, info.num_kv_heads, CAPACITY, info.head_size)
    caches = {i.name: np.zeros(shape, np.float32) for i in session.get_inputs() if "_cache_" in i.name}
    parts: list[list[np.ndarray]] = [[], []]
    lengths = [0, 0]
    for chunks in ((10, 30), (1, 1), (8, 6)):
        width = max(chunks)
        ids, positions, wanted = np.zeros((2, width), np.int64), np.zeros((2, width), np.int64), []
        for row, count in enumerate(chunks):
            start = lengths[row]
            ids[row, :count] = PROMPTS[row][start : start + count]
            positions[row] = np.minimum(start + np.arange(width), CAPACITY - 1)
            wanted += [row * width + i for i in range(count)]
        feeds = {
            "input_ids": ids,
            "positions": positions,
            "write_indices": np.array(lengths, np.int64),
            "logit_indices": np.array(wanted, np.int64),
            **caches,
        }
        results = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
        caches = {name: results[f"{name}_out"] for name in caches}
        first, second = np.split(results["logits"], [chunks[0]])
        parts[0].append(first)
        parts[1].append(second)
        lengths = [length + count for length, count in zip(lengths, chunks, strict=True)]
    return [np.concatenate(part) for part in parts]


def compare(directory: Path, quantized: Quantizer | None = None, tolerance: float = 2e-4) -> None:
    info = build_graph(directory, directory, dtype="float32", mode="native")
    assert info.mode == "native"
    domains = {node.domain for node in onnx.load(directory / "model.onnx", load_external_data=False).graph.node}
    assert domains == {""}
    for got, want in zip(run(directory, info), expected_logits(directory, PROMPTS, quantized), strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max(), rtol=0)


def test_llama_with_yarn_and_biases(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    compare(write_tiny_llama(tmp_path, rope=rope, bias=True))
