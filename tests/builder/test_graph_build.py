"""What a graph directory holds, and every refusal on the way to it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.graphs.build import build_graph
from builder.graphs.checks import check_ranges
from builder.graphs.info import GraphInfo
from tests.builder.quantized_tiny import Quantizer
from tests.support.tiny import write_safetensors, write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers


def load(directory: Path) -> onnx.ModelProto:
    return onnx.load(str(directory / "model.onnx"), load_external_data=False)


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "REMOVE"}))


def edit_tensors(directory: Path, edit: Any) -> None:
    """Rewrite model.safetensors after ``edit(tensors)`` changed {name: (dtype, bytes-like array)} in place."""
    data = (directory / "model.safetensors").read_bytes()
    tensors = {}
    for name, info in read_headers(directory).items():
        width = info.nbytes // max(1, info.elements)
        raw = np.frombuffer(data[info.offset : info.offset + info.nbytes], dtype=f"u{width}")
        tensors[name] = (info.dtype, raw.reshape(info.shape))
    edit(tensors)
    write_safetensors(directory / "model.safetensors", tensors)


def refusal(directory: Path, **options: Any) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        build_graph(directory, directory, **options)
    error = caught.value
    assert error.why and error.remedies
    assert not (directory / "graph.json").exists()
    return error


def test_a_directory_of_its_own(tmp_path: Path) -> None:
    source, out = write_tiny_llama(tmp_path / "c", shards=2), tmp_path / "g"
    for name in ("manifest.json", "COMPLETE", ".hidden"):
        (source / name).write_text("not content")
    info = build_graph(source, out)
    names = {path.name for path in out.iterdir()}
    assert {"model.onnx", "graph.json", "config.json", "tokenizer.json", "generation_config.json"} <= names
    assert not names & {"manifest.json", "COMPLETE", ".hidden"}
    assert GraphInfo.read(out) == info
    raw = json.loads((out / "graph.json").read_text())
    assert raw["architecture"] == "llama" and raw["mode"] == "paged" and raw["ops"] == {"trtforge::PagedAttention": 2}
    assert raw["kv_cache"] == {"format": "bfloat16", "block_size": 32, "scales": "none"}
    assert {"name": "lm_head", "shape": [512, 64], "format": "none", "group_size": None, "rounds_input": False} in raw[
        "linears"
    ]


def test_the_graph_speaks_the_contract(tmp_path: Path) -> None:
    build_graph(write_tiny_llama(tmp_path), tmp_path, block_size=64, tree_mask=True)
    graph = load(tmp_path).graph
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*graph.input, *graph.output)
    }
    assert shapes["input_ids"] == shapes["positions"] == ["T"]
    assert shapes["query_start"] == ["B_plus_1"] and shapes["block_table"] == ["B", "M"]
    assert shapes["kv_pool_1"] == shapes["kv_pool_1_out"] == ["N", 2, 2, 64, 64]
    assert shapes["logits"] == ["L", 512] and shapes["tree_mask"] == ["T", "W"]
    nodes = {node.name: node for node in graph.node}
    assert "/model/layers.1/self_attn/q_proj/MatMul" in nodes
    attention = nodes["/model/layers.0/self_attn/PagedAttention"]
    assert attention.input[-1] == "tree_mask" and attention.input[-2] == ""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in attention.attribute}
    assert attributes["num_heads"] == 4 and attributes["scale"] == pytest.approx(64**-0.5)
    assert {f"hidden_states_{i}" for i in range(3)} <= {name for node in graph.node for name in node.output}
    typed = {v.name for v in (*graph.value_info, *graph.output)}
    assert all(name in typed for node in graph.node for name in node.output)


@pytest.mark.parametrize("fmt", ["fp8", "nvfp4", "int4_awq"])
def test_quantized_graphs(tmp_path: Path, fmt: str) -> None:
    Quantizer(write_tiny_llama(tmp_path / "c"), fmt, kv_fp8=True)
    info = build_graph(tmp_path / "c", tmp_path / "g")
    assert info.quant_format == fmt and info.kv_cache["scales"] == "calibrated"
    assert info.group_size == {"fp8": None, "nvfp4": 16, "int4_awq": 32}[fmt]
    graph = load(tmp_path / "g").graph
    types = {t.name: t.data_type for t in graph.initializer}
    stored = {"fp8": "FLOAT8E4M3FN", "nvfp4": "FLOAT4E2M1", "int4_awq": "INT4"}[fmt]
    assert types["model.layers.0.mlp.down_proj.weight"] == getattr(onnx.TensorProto, stored)
    operators = [node.op_type for node in graph.node]
    # q, k and v share one activation quantizer, gate and up another; o and down have their own.
    expected = {"fp8": ("QuantizeLinear", 8), "nvfp4": ("DynamicBlockQuantize", 8), "int4_awq": ("QuantizeLinear", 0)}
    assert operators.count(expected[fmt][0]) == expected[fmt][1]
    assert (tmp_path / "g" / "packed.safetensors").exists() == (fmt == "int4_awq")


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path: Path) -> None:
    Quantizer(write_tiny_llama(tmp_path / "c"), "int4_awq")
    for out in ("a", "b"):
        build_graph(tmp_path / "c", tmp_path / out)
    for name in ("model.onnx", "graph.json", "packed.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


configs = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "kv_heads": st.integers(1, 3),
        "head_size": st.sampled_from([64, 96, 128, 256]),
        "ffn": st.sampled_from([32, 96, 160]),
        "width": st.sampled_from([32, 64, 96]),
        "tie": st.booleans(),
        "bias": st.booleans(),
        "shards": st.integers(1, 4),
        "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
    }
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=configs,
    repeat=st.integers(1, 4),
    fmt=st.sampled_from(["none", "fp8", "nvfp4", "int4_awq"]),
    emitted=st.sampled_from([None, "float32", "float16", "bfloat16"]),
    kv=st.sampled_from([None, "fp8", "float32"]),
    block=st.sampled_from([16, 32, 64, 128]),
    mask=st.booleans(),
)
def test_random_configurations_build_and_pass_the_checker(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, Any],
    repeat: int,
    fmt: str,
    emitted: str | None,
    kv: str | None,
    block: int,
    mask: bool,
) -> None:
    directory = tmp_path_factory.mktemp("random")
    write_tiny_llama(directory, heads=config["kv_heads"] * repeat, **config)
    if config["shards"] == 1:
        Quantizer(directory, fmt)
    info = build_graph(directory, directory, dtype=emitted, kv_cache_format=kv, block_size=block, tree_mask=mask)
    used = set()
    for tensor in load(directory).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            used.add(tensor.name)
    # Every tensor of the checkpoint is an initializer or has a reason not to be.
    assert set(read_headers(directory)) <= used | set(info.accounted)


# Refusals


def test_unknown_architecture(tmp_path: Path) -> None:
    edit_config(write_tiny_llama(tmp_path), architectures=["MambaForCausalLM"])
    error = refusal(tmp_path)
    assert error.code == "TF-GRF-001" and "LlamaForCausalLM" in error.remedies[0]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": "wide"}, "TF-GRF-002"),
        ({"num_hidden_layers": 0}, "TF-GRF-002"),
        ({"num_key_value_heads": 3}, "TF-GRF-002"),
        ({"hidden_act": "relu"}, "TF-GRF-002"),
        ({"head_dim": "REMOVE", "num_attention_heads": 3, "num_key_value_heads": 3}, "TF-GRF-002"),
        ({"head_dim": "REMOVE"}, "TF-GRF-009"),
        ({"head_dim": 512}, "TF-GRF-009"),
        ({"partial_rotary_factor": 0.5}, "TF-GRF-002"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "TF-GRF-003"),
        ({"num_hidden_layers": 3}, "TF-GRF-004"),
        ({"vocab_size": 500}, "TF-GRF-005"),
        ({"intermediate_size": 256}, "TF-GRF-005"),
        ({"num_hidden_layers": 1}, "TF-GRF-006"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "TF-GRF-002"),
    ],
)
def test_config_against_weights(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    edit_config(write_tiny_llama(tmp_path), **changes)
    assert refusal(tmp_path).code == code


def test_left_over_tensors_are_named(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, bias=True)
    edit_config(tmp_path, attention_bias=False, mlp_bias=False)
    error = refusal(tmp_path)
    assert error.code == "TF-GRF-006"
    assert "model.layers.0.self_attn.q_proj.bias" in error.numbers["unused"]


def test_known_extras_are_accounted_for(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)

    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.zeros(32, dtype=np.uint32))
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    edit_tensors(tmp_path, add)
    accounted = build_graph(tmp_path, tmp_path).accounted
    assert set(accounted) == {"model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"}


def test_calibrated_kv_scales_without_an_fp8_pool_are_accounted_for(tmp_path: Path) -> None:
    Quantizer(write_tiny_llama(tmp_path), "none", kv_fp8=True)
    info = build_graph(tmp_path, tmp_path, kv_cache_format="bfloat16")
    assert len(info.accounted) == 4 and set(info.accounted.values()) == {"the KV pool is not FP8"}
    assert build_graph(tmp_path, tmp_path).accounted == {}


def test_an_fp8_pool_without_scales_says_so(tmp_path: Path) -> None:
    assert build_graph(write_tiny_llama(tmp_path), tmp_path, kv_cache_format="fp8").kv_cache["scales"] == "unit"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"dtype": "int8"}, "TF-GRF-012"),
        ({"mode": "linear"}, "TF-GRF-012"),
        ({"mode": "native", "kv_cache_format": "fp8"}, "TF-GRF-011"),
        ({"mode": "native", "tree_mask": True}, "TF-GRF-012"),
        ({"block_size": 24}, "TF-GRF-011"),
        ({"kv_cache_format": "nvfp4"}, "TF-GRF-011"),
        ({"hidden_states": (3,)}, "TF-GRF-012"),
    ],
)
def test_impossible_requests(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    assert refusal(write_tiny_llama(tmp_path), **options).code == code


def drop(suffix: str) -> Any:
    def edit(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.endswith(suffix)]:
            del tensors[name]

    return edit


def retype(suffix: str, dtype: str, array: Any) -> Any:
    def edit(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.endswith(suffix)]:
            tensors[name] = (dtype, array(tensors[name][1]))

    return edit


@pytest.mark.parametrize(
    ("fmt", "edit", "code"),
    [
        ("fp8", drop("input_scale"), "TF-GRF-013"),
        ("nvfp4", drop("input_scale"), "TF-GRF-013"),
        ("fp8", drop("weight_scale"), "TF-GRF-007"),
        ("fp8", retype("q_proj.weight_scale", "F32", lambda a: np.zeros(3, dtype=np.uint32)), "TF-GRF-007"),
        # a scale a row is another format than the one declared
        ("fp8", retype("q_proj.weight_scale", "F32", lambda a: np.zeros(256, dtype=np.uint32)), "TF-GRF-017"),
        ("nvfp4", drop("weight_scale_2"), "TF-GRF-004"),
        ("int4_awq", retype("q_proj.weight_scale", "BF16", lambda a: np.zeros((256, 3), np.uint16)), "TF-GRF-008"),
        ("int4_awq", retype("o_proj.pre_quant_scale", "BF16", lambda a: np.zeros(3, np.uint16)), "TF-GRF-005"),
    ],
)
def test_damaged_quantized_checkpoints(tmp_path: Path, fmt: str, edit: Any, code: str) -> None:
    Quantizer(write_tiny_llama(tmp_path), fmt)
    edit_tensors(tmp_path, edit)
    assert refusal(tmp_path).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"quantization": {"quant_algo": "NVFP4"}}', "TF-GRF-017"),
        ('{"quantization": {"quant_algo": "MXFP8"}}', "TF-GRF-007"),
        ('{"quantization": []}', "TF-GRF-016"),
        ("{", "TF-GRF-016"),
    ],
)
def test_declared_quantization_must_be_there(tmp_path: Path, text: str, code: str) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text(text)
    if text == '{"quantization": []}':
        build_graph(tmp_path, tmp_path)  # empty: nothing is declared
        return
    assert refusal(tmp_path).code == code


def test_links_are_refused_in_place_and_followed_elsewhere(tmp_path: Path) -> None:
    source, linked = write_tiny_llama(tmp_path / "c"), tmp_path / "linked"
    linked.mkdir()
    for path in source.iterdir():
        (linked / path.name).symlink_to(path)
    assert refusal(linked).code == "TF-GRF-014"
    build_graph(linked, tmp_path / "g")
    assert not (tmp_path / "g" / "model.safetensors").is_symlink()
    os.link(source / "model.safetensors", tmp_path / "second")
    assert refusal(source).code == "TF-GRF-014"


@pytest.mark.parametrize(("key", "value"), [("offset", 10**9), ("length", 10)])
def test_ranges_are_checked_where_the_checker_does_not(tmp_path: Path, key: str, value: int) -> None:
    build_graph(write_tiny_llama(tmp_path), tmp_path)
    model = load(tmp_path)
    check_ranges(model, tmp_path)
    tensor = next(t for t in model.graph.initializer if t.name == "model.layers.1.mlp.up_proj.weight")
    entry = next(e for e in tensor.external_data if e.key == key)
    entry.value = str(value)
    with pytest.raises(ForgeError, match="TF-GRF-010"):
        check_ranges(model, tmp_path)


def test_initializers_hold_the_checkpoints_numbers(tmp_path: Path) -> None:
    build_graph(write_tiny_llama(tmp_path), tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    headers = read_headers(tmp_path)
    loaded = onnx.load(str(tmp_path / "model.onnx"))
    external = [t for t in loaded.graph.initializer if t.name in headers]
    assert len(external) == len(headers)
    for tensor in external:
        info = headers[tensor.name]
        assert tensor.raw_data == data[info.offset : info.offset + info.nbytes]
        assert math.prod(tensor.dims) == info.elements


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', '{"version": 1}'])
def test_unreadable_graph_descriptions(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(ForgeError, match="TF-GRF-015"):
        GraphInfo.read(tmp_path)
