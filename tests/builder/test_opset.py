"""The operators' schemas: what passes the checker and strict inference, and what does not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from builder import opset


def attention(
    *,
    head_size: int = 64,
    kv_heads: int = 2,
    heads: int = 4,
    query_type: int = TensorProto.BFLOAT16,
    pool_type: int = TensorProto.FLOAT8E4M3FN,
    pool: list[Any] | None = None,
    scales: bool = True,
    mask: int | None = None,
    version: int = opset.VERSION,
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    inputs = [
        info("q", query_type, ["T", 4 * 64]),
        info("k", query_type, ["T", 2 * 64]),
        info("v", query_type, ["T", 2 * 64]),
        info("pool", pool_type, pool or ["N", 2, 2, 32, 64]),
        info("starts", TensorProto.INT32, ["B1"]),
        info("lengths", TensorProto.INT32, ["B"]),
        info("table", TensorProto.INT32, ["B", "M"]),
    ]
    names = [i.name for i in inputs]
    if scales:
        inputs += [info("ks", TensorProto.FLOAT, []), info("vs", TensorProto.FLOAT, [])]
        names += ["ks", "vs"]
    if mask is not None:
        inputs.append(info("mask", mask, ["T", "W"]))
        names += ["mask"] if scales else ["", "", "mask"]
    node = helper.make_node(
        "PagedAttention",
        names,
        ["out", "pool_out"],
        name="attention",
        domain="trtforge",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
    )
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("out", "pool_out")]
    return helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("trtforge", version)],
        ir_version=12,
    )


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    opset.register()
    result = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    onnx.checker.check_model(result, full_check=True)
    return result


@pytest.mark.parametrize("pool_type", opset.POOL_TYPES.values())
@pytest.mark.parametrize("query_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_outputs_are_typed_as_query_and_pool(query_type: int, pool_type: int) -> None:
    model = infer(attention(query_type=query_type, pool_type=pool_type))
    out, pool = model.graph.output
    assert out.type.tensor_type.elem_type == query_type
    assert [d.dim_param or d.dim_value for d in out.type.tensor_type.shape.dim] == ["T", 256]
    assert pool.type.tensor_type.elem_type == pool_type
    assert [d.dim_param or d.dim_value for d in pool.type.tensor_type.shape.dim] == ["N", 2, 2, 32, 64]


@pytest.mark.parametrize("mask", [TensorProto.BOOL, TensorProto.UINT8])
@pytest.mark.parametrize("scales", [True, False])
def test_optional_inputs(mask: int, scales: bool) -> None:
    infer(attention(mask=mask, scales=scales))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_size": 32}, "head_size 32"),
        ({"head_size": 512}, "head_size 512"),
        ({"kv_heads": 3}, "4 heads over 3 kv heads"),
        ({"kv_heads": 1}, "key has shape"),
        ({"heads": 2}, "query has shape"),
        ({"pool": ["N", 1, 2, 32, 64]}, "kv_pool has shape"),
        ({"pool": ["N", 2, 2, 32]}, "kv_pool has shape"),
        ({"mask": TensorProto.FLOAT}, "tree_mask|type"),
        ({"pool_type": TensorProto.INT8}, "type"),
    ],
)
def test_contradictions_are_found(change: dict[str, Any], message: str) -> None:
    with pytest.raises((onnx.shape_inference.InferenceError, onnx.checker.ValidationError), match=message):
        infer(attention(**change))


@pytest.mark.parametrize(("width", "fine"), [(64, True), (72, False)])
def test_dynamic_block_quantize(width: int, fine: bool) -> None:
    node = helper.make_node("DynamicBlockQuantize", ["x", "s"], ["y"], domain="trtforge", block_size=16)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["T", width]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("trtforge", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=12)
    if fine:
        assert infer(model).graph.output[0].type.tensor_type.elem_type == TensorProto.BFLOAT16
    else:
        with pytest.raises(onnx.shape_inference.InferenceError, match="72 is no multiple of 16"):
            infer(model)


@pytest.mark.parametrize(("version", "since"), [(1, 1), (2, 2)])
def test_graphs_of_either_version_are_checked_by_their_own(version: int, since: int) -> None:
    infer(attention(mask=TensorProto.UINT8, version=version))
    assert onnx.defs.get_schema("PagedAttention", version, "trtforge").since_version == since
    assert onnx.defs.get_schema("DynamicBlockQuantize", version, "trtforge").since_version == 1


def test_a_process_that_registered_ends_cleanly() -> None:
    code = "from builder import opset; opset.register(); opset.register()"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
