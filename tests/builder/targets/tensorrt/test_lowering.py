"""The graph as TensorRT's parser takes it, and the profiles that hold every step under the limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from builder.graphs.emitter import MODEL_TYPES
from builder.targets.tensorrt.lowering import Lowering, Network, lower
from builder.targets.tensorrt.plugin_fields import check_fields
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes, decode_buckets, profile_shapes
from builder.targets.tensorrt.versions import missing_operators
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Limits

Graphs = Callable[..., Path]
OLDEST = missing_operators("10.14.1")
ort = pytest.importorskip("onnxruntime")


def nodes(network: Network, op: str) -> list[Any]:
    return [node for node in onnx.load_from_string(network.model).graph.node if node.op_type == op]


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@pytest.mark.parametrize("fmt", ["none", "fp8", "nvfp4", "int4_awq"])
def test_every_node_is_one_that_the_parser_has(graphs: Graphs, fmt: str) -> None:
    for version in ("10.14.1", "10.16.1", "11.4.0"):
        missing = missing_operators(version)
        model = onnx.load_from_string(lower(graphs(fmt), missing).model)
        assert not {node.op_type for node in model.graph.node} & missing
        domains = {node.domain for node in model.graph.node}
        assert domains <= {"", "trtforge", "trt"} and domains <= {item.domain for item in model.opset_import}
        names = [output for node in model.graph.node for output in node.output]
        assert len(set(names)) == len(names)
        known = {*names, *(v.name for v in model.graph.input), *(t.name for t in model.graph.initializer)}
        assert all(name in known for node in model.graph.node for name in node.input if name)


def test_plugin_nodes(graphs: Graphs) -> None:
    network = lower(graphs(kv_cache_format="fp8", tree_mask=True), frozenset())
    made = nodes(network, "PagedAttention")
    assert len(made) == 2 == len(network.plugins)
    for node in made:
        given = attributes(node)
        assert given["plugin_version"] == b"2" and not given["aliased"] and given["plugin_namespace"] == b"trtforge"
        assert (given["has_scales"], given["has_tree_mask"], given["has_sinks"]) == (1, 1, 0)
        assert len(node.input) == 11 and all(node.input), "no gaps among the inputs"
        assert node.input[7] == "longest_query"
    assert next(v for v in network.inputs if v["name"] == "tree_mask")["type"] == "BOOL"


def test_a_mask_without_scales_leaves_no_gap(graphs: Graphs) -> None:
    (first, _) = nodes(lower(graphs(tree_mask=True), frozenset()), "PagedAttention")
    assert list(first.input[7:]) == ["longest_query", "tree_mask"]
    assert attributes(first)["has_scales"] == 0 and attributes(first)["has_tree_mask"] == 1


def test_inputs_and_outputs_are_the_graphs(graphs: Graphs) -> None:
    network = lower(graphs(hidden_states=(1,)), frozenset())
    assert [v["name"] for v in network.inputs][:6] == [
        "input_ids", "positions", "query_start", "sequence_lengths", "block_table", "logit_indices",
    ]  # fmt: skip
    assert network.inputs[-2] == {"name": "kv_pool_1", "type": "BFLOAT16", "shape": ["N", 2, 2, 32, 64]}
    assert network.inputs[-1] == {"name": "longest_query", "type": "INT32", "shape": ["Q"]}
    assert set(network.outputs) == {"logits", "hidden_states_1", "kv_pool_0_out", "kv_pool_1_out"}


def test_block_scales_have_the_type_of_what_they_scale(graphs: Graphs) -> None:
    """TensorRT takes no float32 scales for a bfloat16 result of a block-wise DequantizeLinear."""
    model = onnx.load_from_string(lower(graphs("nvfp4"), frozenset()).model)
    makers = {output: node for node in model.graph.node for output in node.output}
    blockwise = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and attributes(n).get("block_size")]
    assert len(blockwise) >= 14
    for node in blockwise:
        assert attributes(makers[node.input[1]])["output_dtype"] == attributes(node)["output_dtype"]
    for node in nodes(lower(graphs("nvfp4"), frozenset()), "TRT_FP4DynamicQuantize"):
        assert attributes(node)["block_size"] == 16 and len(node.output) == 2


def test_the_same_graph_gives_the_same_bytes(graphs: Graphs) -> None:
    assert lower(graphs("fp8"), OLDEST).model == lower(graphs("fp8"), OLDEST).model


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("RMSNormalization", {"x": (5, 32), "w": (32,)}, {"axis": -1, "epsilon": 1e-6, "stash_type": 1}),
        ("RMSNormalization", {"x": (5, 3, 32), "w": (32,)}, {"axis": -1, "epsilon": 1e-6, "stash_type": 1}),
        ("RotaryEmbedding", {"x": (1, 5, 24), "c": (1, 5, 4), "s": (1, 5, 4)}, {"num_heads": 3, "interleaved": 0}),
        ("Swish", {"x": (5, 32)}, {"alpha": 1.0}),
    ],
)
def test_spelled_out_operators_compute_the_same(
    op: str, inputs: dict[str, tuple[int, ...]], options: dict[str, Any], dtype: str
) -> None:
    """ONNX Runtime on the operator and on what replaces it."""
    kind = MODEL_TYPES[dtype]
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
    out = helper.make_tensor_value_info("y", kind, inputs["x"])
    node = helper.make_node(op, list(inputs), ["y"], name="/n", **options)
    model = helper.make_model(
        helper.make_graph([node], "g", values, [out]), opset_imports=[helper.make_opsetid("", 24)], ir_version=11
    )
    original = model.SerializeToString()
    network = Lowering(model, OLDEST).run()
    assert network.spelled_out == {op: 1}
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(dtype) for name, shape in inputs.items()}
    wanted, got = (
        ort.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for text in (original, network.model)
    )
    np.testing.assert_allclose(
        got, wanted, rtol=2e-3 if dtype == "float16" else 1e-6, atol=2e-3 if dtype == "float16" else 1e-6
    )


def test_what_is_not_spelled_out() -> None:
    for op, options in (("Swish", {"alpha": 2.0}), ("RotaryEmbedding", {"interleaved": 1, "num_heads": 1})):
        value = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 8))
        node = helper.make_node(op, ["x", "x", "x"][: 1 if op == "Swish" else 3], ["y"], name="/n", **options)
        graph = helper.make_graph([node], "g", [value], [value])
        with pytest.raises(ValueError):
            Lowering(helper.make_model(graph), OLDEST).run()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_size": 60}, "head_size is 60; it must be from 64 to 256, a multiple of 8"),
        ({"num_kv_heads": 3}, "num_heads 8 is no multiple of num_kv_heads 3"),
        ({"scale": 1}, "scale is 1, not a float32"),
        ({"head_size": 64.0}, "head_size is 64.0, not a int32"),
        ({"window": 4}, "window is no field"),
        ({"sliding_window": -1}, "sliding_window is -1"),
    ],
)
def test_fields_without_kernels(change: dict[str, Any], words: str) -> None:
    good = {"num_heads": 8, "num_kv_heads": 2, "head_size": 64, "scale": 0.125}
    check_fields("PagedAttention", "/n", good)
    with pytest.raises(ForgeError) as caught:
        check_fields("PagedAttention", "/n", good | change)
    assert caught.value.code == "TF-BLD-105" and words in caught.value.message
    with pytest.raises(ForgeError, match="num_heads is missing"):
        check_fields("PagedAttention", "/n", {"num_kv_heads": 2, "head_size": 64})


# --- Profiles -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 40),
    extra=st.integers(0, 500),
    longest=st.integers(2, 600),
    block=st.sampled_from([16, 32, 64, 128]),
    blocks=st.integers(1, 5000),
    data=st.data(),
)
def test_every_step_under_the_limits_fits(
    batch: int, extra: int, longest: int, block: int, blocks: int, data: st.DataObject
) -> None:
    limits = Limits(max_batch_size=batch, max_num_tokens=batch + extra, max_seq_len=longest)
    sizes = Sizes.of(limits, block_size=block, num_blocks=blocks)
    letters = {
        "ids": ["T"],
        "start": ["B_plus_1"],
        "lengths": ["B"],
        "table": ["B", "M"],
        "rows": ["L"],
        "pool": ["N", 2],
    }
    inputs = [{"name": name, "type": "INT32", "shape": shape} for name, shape in letters.items()]
    requests = data.draw(st.integers(1, batch))
    tokens = data.draw(st.integers(requests, limits.max_num_tokens))
    rows = data.draw(st.integers(1, min(sizes.rows, tokens)))
    table = data.draw(st.integers(1, sizes.table))
    step = {"T": tokens, "B": requests, "B_plus_1": requests + 1, "M": table, "L": rows, "N": sizes.blocks}
    bucket = next(size for size in decode_buckets(batch) if size >= requests)
    decode = {"T": bucket, "B": bucket, "B_plus_1": bucket + 1, "M": sizes.table, "L": bucket, "N": sizes.blocks}
    for profile, actual in ((MIXED, step), (DECODE, decode)):
        shapes = profile_shapes(inputs, sizes, profile)
        assert set(shapes) == set(letters)
        for name, (low, best, high) in shapes.items():
            given = [actual[size] if isinstance(size, str) else size for size in letters[name]]
            assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))
            assert all(a <= b <= c for a, b, c in zip(low, given, high, strict=True)), (profile, name)
    assert sizes.blocks - blocks == sizes.padding_blocks == -(-batch // block)
    assert sizes.rows <= limits.max_num_tokens


def test_buckets() -> None:
    assert decode_buckets(1) == (1,) and decode_buckets(8) == (1, 2, 4, 8) and decode_buckets(6) == (1, 2, 4, 6)


def test_an_input_that_no_profile_knows() -> None:
    sizes = Sizes.of(Limits(), block_size=32, num_blocks=9)
    with pytest.raises(ValueError, match="dimension Z"):
        profile_shapes([{"name": "x", "type": "INT32", "shape": ["Z"]}], sizes, MIXED)


def test_a_decode_profile_has_no_long_queries_and_no_trees(graphs: Graphs) -> None:
    """So a decode step may launch what one token a request needs, and nothing else."""
    network = lower(graphs(tree_mask=True), frozenset())
    sizes = Sizes.of(Limits(max_batch_size=8, max_num_tokens=100), block_size=32, num_blocks=9, tree=True)
    decode, mixed = (profile_shapes(network.inputs, sizes, profile) for profile in (DECODE, MIXED))
    assert decode["longest_query"] == ((1,), (1,), (1,)) and decode["tree_mask"] == ((1, 1), (8, 1), (8, 1))
    assert mixed["longest_query"] == ((1,), (100,), (100,)) and mixed["tree_mask"] == ((1, 1), (100, 64), (100, 64))


def test_plugins_that_declare_their_pools(graphs: Graphs) -> None:
    network = lower(graphs(), frozenset(), aliased=True)
    assert all(attributes(node)["aliased"] for node in nodes(network, "PagedAttention"))
    assert [plugin["fields"]["aliased"] for plugin in network.plugins] == [1, 1]


def test_shapes_are_json(graphs: Graphs) -> None:
    network = lower(graphs(), frozenset())
    sizes = Sizes.of(Limits(max_seq_len=256), block_size=32, num_blocks=9)
    json.dumps(profile_shapes(network.inputs, sizes, DECODE))
