"""Biases and norms of heads in TensorRT-LLM's checkpoint: where each rank has them, and what has no place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builder.targets.trtllm.checkpoint import convert_checkpoint
from tests.builder.quantized_tiny import read_tensors
from tests.builder.targets.trtllm.deshard import load_ranks
from tests.builder.targets.trtllm.test_checkpoint import SHAPE
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError

CLASSES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_biases_go_with_their_heads_and_norms_to_every_rank(tmp_path: Path, tp: int) -> None:
    """Eight heads over four KV heads: at tp 8 two ranks hold a copy of one."""
    found = {}
    for kind, name in CLASSES.items():
        source = write_tiny_llama(tmp_path / kind, architecture=name, **SHAPE)
        convert_checkpoint(source, tmp_path / f"{kind}-out", tp=tp)
        found[kind] = read_tensors(source), load_ranks(tmp_path / f"{kind}-out")[1]
    tensors, ranks = found["qwen2"]
    q, k, v = (tensors[f"model.layers.1.self_attn.{part}_proj.bias"].reshape(-1, 64) for part in "qkv")
    for number, rank in enumerate(ranks):
        queries = q[number * 8 // tp : (number + 1) * 8 // tp]
        own = slice(number * 4 // tp, number * 4 // tp + max(1, 4 // tp))
        wanted = np.concatenate([queries, k[own], v[own]]).reshape(-1)
        assert np.array_equal(rank["transformer.layers.1.attention.qkv.bias"], wanted)
        assert "transformer.layers.1.attention.dense.bias" not in rank
    tensors, ranks = found["qwen3"]
    for rank in ranks:
        for part in "qk":
            norm = rank[f"transformer.layers.2.attention.{part}_layernorm.weight"]
            assert np.array_equal(norm, tensors[f"model.layers.2.self_attn.{part}_norm.weight"])


def test_a_bias_on_the_output_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "model", architecture="Qwen3ForCausalLM", bias=True)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    with pytest.raises(ForgeError) as caught:
        convert_checkpoint(source, tmp_path / "out")
    assert caught.value.code == "TF-BLD-070"
