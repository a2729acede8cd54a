"""The graph as the parser takes it, and the profiles: no compiler is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from builder.targets.parser_rules import PARSER_DOMAIN, element_types
from builder.targets.rtx.lowering import lower
from builder.targets.rtx.profiles import input_dims, make_profiles
from tests.builder.targets.rtx.models import load, native_graph
from trtforge.recipe.schema import Limits


@pytest.mark.parametrize("fmt", ["none", "fp8", "int4_awq", "nvfp4"])
def test_dimensions_and_domains(tmp_path: Path, fmt: str) -> None:
    model = load(native_graph(tmp_path, fmt))
    before = model.SerializeToString(deterministic=True)
    lowered = lower(model, capacity=96)
    assert model.SerializeToString(deterministic=True) == before, "the graph itself stays as it is"
    assert input_dims(lowered) == {
        "input_ids": ("B", "Q"),
        "positions": ("B", "Q"),
        "write_indices": ("B",),
        "logit_indices": ("B",),
        **{f"{part}_cache_{layer}": ("B", 2, 96, 64) for layer in range(2) for part in ("key", "value")},
    }
    domains = {node.domain for node in lowered.graph.node}
    assert domains == ({"", PARSER_DOMAIN} if fmt == "nvfp4" else {""})
    assert {item.domain for item in lowered.opset_import} == domains
    assert len({node.name for node in lowered.graph.node}) == len(lowered.graph.node)
    external = [t for t in lowered.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    assert external and {e.value for t in external for e in t.external_data if e.key == "location"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize(("fmt", "dtype"), [("int4_awq", "bfloat16"), ("nvfp4", "float16"), ("nvfp4", "bfloat16")])
def test_block_scales_have_the_type_of_the_values(tmp_path: Path, fmt: str, dtype: str) -> None:
    lowered = lower(load(native_graph(tmp_path, fmt, dtype=dtype)), capacity=64)
    outputs = {name: node for node in lowered.graph.node for name in node.output}
    initializers = element_types(lowered)
    want = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    blockwise = 0
    for node in lowered.graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        if node.op_type != "DequantizeLinear" or not attributes.get("block_size"):
            continue
        blockwise += 1
        assert attributes["output_dtype"] == want
        scales = node.input[1]
        made = outputs.get(scales)
        have = initializers[scales] if made is None else {a.name: a.i for a in made.attribute}.get("output_dtype")
        assert have == want
    assert blockwise == 14 if fmt == "int4_awq" else blockwise > 14


def test_int4_scales_of_another_type_are_cast(tmp_path: Path) -> None:
    from builder.graphs.build import build_graph

    native_graph(tmp_path, "int4_awq", dtype="bfloat16")
    build_graph(tmp_path, tmp_path, dtype="float16", mode="native")
    lowered = lower(load(tmp_path), capacity=64)
    casts = [n for n in lowered.graph.node if n.op_type == "Cast" and n.name.endswith("_scales")]
    assert len(casts) == 14 and all(n.attribute[0].i == TensorProto.FLOAT16 for n in casts)


def test_only_float32_attention_may_be_taken_apart(tmp_path: Path) -> None:
    for dtype in ("float16", "float32"):
        lowered = lower(load(native_graph(tmp_path / dtype, dtype=dtype)), capacity=64)
        marked = [
            any(a.name == "TRT_decomposable" for a in node.attribute)
            for node in lowered.graph.node
            if node.op_type == "Attention"
        ]
        assert marked == [dtype == "float32"] * 2


@given(
    batch=st.integers(1, 64),
    tokens=st.integers(64, 8192),
    seq=st.integers(2, 8192),
    data=st.data(),
)
def test_profiles_hold_what_the_limits_allow(batch: int, tokens: int, seq: int, data: st.DataObject) -> None:
    longest = data.draw(st.integers(1, seq - 1))
    limits = Limits(max_batch_size=batch, max_num_tokens=tokens, max_seq_len=seq, max_input_len=longest)
    decode, prefill = make_profiles(limits)
    assert (decode.batch[2], decode.row) == (batch, (1, 1, 1))
    assert prefill.row[2] == min(longest, tokens)
    assert prefill.batch[2] * prefill.row[2] <= max(tokens, prefill.row[2]) and 1 <= prefill.batch[2] <= batch
    for profile in (decode, prefill):
        for low, usual, high in profile.shapes({"x": ("B", "Q", 7), "w": ("B",)}).values():
            assert all(a <= b <= c for a, b, c in zip(low, usual, high, strict=True))
            assert len(low) == 1 or low[2] == usual[2] == high[2] == 7
