"""What config.json leaves to the class, as its row says: heads, biases, windows; and biases on the keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.graphs.config import read_config
from quantize.intake import CheckpointInfo, fetch_checkpoint, inspect_source
from tests.support.refusals import refusal
from tests.support.tiny import write_safetensors, write_tiny_llama
from tests.support.tiny_gguf import read_float32, write_tiny_gguf
from trtforge.tables.decoders import decoders

QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"


def fetch(source: Path | str, tmp_path: Path, **options: Any) -> CheckpointInfo:
    return fetch_checkpoint(str(source), tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache", **options)


def config_of(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return loaded


def edit(directory: Path, **changes: Any) -> None:
    config = {key: value for key, value in {**config_of(directory), **changes}.items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(config))


def key_biases(folder: Path) -> float:
    return max(float(np.abs(v).max()) for name, v in read_float32(folder).items() if name.endswith("k_proj.bias"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_largest_key_bias_is_read_of_the_values(tmp_path: Path, dtype: str) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN2, dtype=dtype, layers=3, shards=2)
    info = inspect_source("model", tmp_path)
    assert info is not None and info.model.key_bias == key_biases(model) > 0.1
    assert fetch("model", tmp_path, dtype="float32").model.key_bias == info.model.key_bias


def test_a_key_bias_is_found_in_any_class_and_nowhere_else(tmp_path: Path) -> None:
    biased = write_tiny_llama(tmp_path / "biased", bias=True)
    write_tiny_llama(tmp_path / "plain")
    found = [inspect_source(name, tmp_path) for name in ("biased", "plain")]
    assert [info.model.key_bias for info in found if info is not None] == [key_biases(biased), None]


def test_biases_that_are_no_numbers_are_unknown(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN2, dtype="float32", layers=1)
    values = read_float32(model)
    name = "model.layers.0.self_attn.k_proj.bias"
    values[name] = np.full_like(values[name], np.nan)
    write_safetensors(model / "model.safetensors", {key: ("F32", value) for key, value in values.items()})
    info = inspect_source("model", tmp_path)
    assert info is not None and info.model.key_bias is None


def test_a_gguf_file_s_key_bias_is_read_where_it_lies(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", architecture=QWEN2)
    path = write_tiny_gguf(tmp_path / "m.gguf", source, matrix_type="BF16", pre="qwen2")
    info = inspect_source(str(path), tmp_path)
    assert info is not None and info.model.key_bias == key_biases(source)
    assert fetch(path, tmp_path, dtype="float32").model.key_bias == info.model.key_bias
    llama = write_tiny_gguf(tmp_path / "llama.gguf", write_tiny_llama(tmp_path / "llama"))
    plain = inspect_source(str(llama), tmp_path)
    assert plain is not None and plain.model.key_bias is None


def test_the_class_is_found_by_its_model_type(tmp_path: Path) -> None:
    edit(write_tiny_llama(tmp_path / "model", architecture=QWEN3), architectures=...)
    assert fetch("model", tmp_path).model.architecture == QWEN3
    assert config_of(tmp_path / "out")["model_type"] == "qwen3"


def test_heads_of_the_class_where_the_file_does_not_say(tmp_path: Path) -> None:
    """Qwen3's head_dim is 128 by its class, whatever width and heads are; Qwen2's follows from them."""
    edit(write_tiny_llama(tmp_path / "three", architecture=QWEN3, head_size=128), head_dim=...)
    assert fetch("three", tmp_path).model.head_size == 128
    assert config_of(tmp_path / "out")["head_dim"] == 128
    edit(write_tiny_llama(tmp_path / "two", architecture=QWEN2, width=256, heads=4), head_dim=...)
    assert fetch("two", tmp_path).model.head_size == 64


@pytest.mark.parametrize("lacks", ["q_proj.bias", "q_norm.weight"])
def test_a_missing_bias_or_norm_is_refused(tmp_path: Path, lacks: str) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN2 if "bias" in lacks else QWEN3)
    kept = {
        name: ("F32", values)
        for name, values in read_float32(model).items()
        if f"layers.1.self_attn.{lacks}" not in name
    }
    write_safetensors(model / "model.safetensors", kept)
    error = refusal(inspect_source, "model", tmp_path)
    assert error.code == "TF-SRC-022" and lacks in error.message


@pytest.mark.parametrize("architecture", [QWEN2, QWEN3])
def test_windows_by_layer(tmp_path: Path, architecture: str) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=architecture, layers=3)
    edit(model, sliding_window=64, use_sliding_window=False, max_window_layers=1)
    off = fetch("model", tmp_path)
    assert (off.model.sliding_window, off.model.window_layers) == (0, 0)
    written = config_of(tmp_path / "out")
    assert (written["sliding_window"], written["use_sliding_window"]) == (None, False)

    edit(model, use_sliding_window=True)
    some = fetch("model", tmp_path)
    assert (some.model.sliding_window, some.model.window_layers) == (64, 2)
    kinds = config_of(tmp_path / "out")["layer_types"]
    assert kinds == ["full_attention", "sliding_attention", "sliding_attention"]

    edit(model, layer_types=["sliding_attention", "full_attention", "full_attention"])
    named = fetch("model", tmp_path)
    assert (named.model.sliding_window, named.model.window_layers) == (64, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True, "sliding_window": 0},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": -1},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": "full_attention"},
    ],
)
def test_windows_that_are_no_rule_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    edit(write_tiny_llama(tmp_path / "model", architecture=QWEN2), **changes)
    assert refusal(inspect_source, "model", tmp_path).code == "TF-SRC-021"


def test_attention_in_chunks_is_refused(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN2)
    edit(
        model,
        dual_chunk_attention_config={
            "chunk_size": 262144,
            "local_size": 8192,
            "original_max_position_embeddings": 262144,
        },
    )
    error = refusal(inspect_source, "model", tmp_path)
    assert error.code == "TF-SRC-021" and "dual_chunk_attention_config" in error.message
    assert refusal(read_config, model).code == "TF-GRF-002"


def test_mistrals_window_is_the_classs_where_the_file_does_not_say(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture="MistralForCausalLM")
    assert fetch("model", tmp_path).model.sliding_window == 0
    edit(model, sliding_window=...)
    info = fetch("model", tmp_path)
    assert (info.model.sliding_window, info.model.window_layers) == (4096, 2)
    assert config_of(tmp_path / "out")["sliding_window"] == 4096


def test_gguf_with_a_window_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", architecture=QWEN2)
    path = write_tiny_gguf(tmp_path / "m.gguf", source, extra={"qwen2.attention.sliding_window": 128})
    assert refusal(inspect_source, str(path), tmp_path).code == "TF-SRC-015"


def test_positions_of_the_class_where_the_file_does_not_say(tmp_path: Path) -> None:
    """transformers leaves out what the class has anyway; what intake writes says it to any reader."""
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN3)
    edit(model, max_position_embeddings=...)
    info = fetch("model", tmp_path)
    assert info.model.max_positions == decoders()[QWEN3].max_positions == read_config(model).max_positions
    assert config_of(tmp_path / "out")["max_position_embeddings"] == info.model.max_positions


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 2.0},
        {"num_hidden_layers": 20_000},
        {"num_attention_heads": 3},
        {"hidden_act": "relu"},
        {"vocab_size": True},
    ],
)
def test_intake_and_graph_refuse_the_same_for_the_same_reason(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture=QWEN3)
    edit(model, **changes)
    taken, written = refusal(inspect_source, "model", tmp_path), refusal(read_config, model)
    assert (taken.code, written.code) == ("TF-SRC-021", "TF-GRF-002")
    assert taken.message.split(": ", 1)[1] == written.message.split(": ", 1)[1]
    assert taken.remedies and written.remedies
