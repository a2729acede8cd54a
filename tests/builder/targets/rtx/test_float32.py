"""The float32 emission in ONNX Runtime against transformers and the reference reader, in every format."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from builder.graphs.info import GraphInfo
from builder.targets.rtx.float32 import WEIGHTS_FILE, _dynamic_block_quantize, dequantize_nvfp4, emit_float32
from builder.targets.rtx.session import Float32Session
from tests.builder.quantized_tiny import Quantizer, expected_logits
from tests.builder.reference_ops import fake_nvfp4
from tests.support.tiny import write_tiny_llama

PROMPT = [int(t) for t in np.random.default_rng(5).integers(0, 512, 33)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("fmt", "tolerance"), [("none", 2e-4), ("fp8", 2e-2), ("int4_awq", 5e-4), ("nvfp4", 2e-2)])
def test_every_format_is_the_checkpoint(tmp_path: Path, dtype: str, fmt: str, tolerance: float) -> None:
    source = write_tiny_llama(tmp_path / "c", dtype=dtype)
    quantized = Quantizer(source, fmt, scale_type={"bfloat16": "BF16", "float16": "F16"}[dtype])
    emit_float32(source, tmp_path / "f")
    got = Float32Session(tmp_path / "f", threads=2).logits(PROMPT)
    (want,) = expected_logits(source, [PROMPT], quantized)
    assert got.dtype == np.float32 and got.shape == want.shape
    error = np.abs(got - want) / np.abs(want).max()
    assert error.max() < tolerance and np.median(error) < 1e-6
    assert (tmp_path / "f" / WEIGHTS_FILE).is_file() == (fmt == "nvfp4")


def test_a_wrong_scale_is_seen(tmp_path: Path) -> None:
    """The comparison has teeth: one outer scale off by a tenth moves the logits far over the tolerance."""
    source = write_tiny_llama(tmp_path / "c")
    quantized = Quantizer(source, "nvfp4")
    name = "model.layers.1.mlp.down_proj.weight"
    quantized.meaning[name] = quantized.meaning[name] * np.float32(1.1)
    emit_float32(source, tmp_path / "f")
    got = Float32Session(tmp_path / "f", threads=2).logits(PROMPT)
    (want,) = expected_logits(source, [PROMPT], quantized)
    assert np.abs(got - want).max() / np.abs(want).max() > 2e-2


def test_kv_scales_of_the_checkpoint_do_not_matter(tmp_path: Path) -> None:
    """RTX engines keep the cache in the model's type: a checkpoint calibrated for FP8 caches gives the same graph."""
    source = write_tiny_llama(tmp_path / "c")
    quantized = Quantizer(source, "fp8", kv_fp8=True)
    info = emit_float32(source, tmp_path / "f")
    assert info.kv_cache["format"] == "float32" and info == GraphInfo.read(tmp_path / "f")
    got = Float32Session(tmp_path / "f", threads=2).logits(PROMPT)
    (want,) = expected_logits(source, [PROMPT], quantized)
    assert np.abs(got - want).max() / np.abs(want).max() < 2e-2


def _function_session() -> object:
    import onnxruntime

    node = helper.make_node("DynamicBlockQuantize", ["x", "s"], ["y"], domain="trtforge", block_size=16)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("trtforge", 1)],
        functions=[_dynamic_block_quantize()],
        ir_version=11,
    )
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def session() -> object:
    return _function_session()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-3, 1.0, 40.0]), scale=st.sampled_from([1e-3, 0.02]))
def test_the_function_is_the_op(session: object, seed: int, size: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((5, 32)) * size).astype(np.float32)
    x[0, :16] = 0
    # ties of the grid: with a scale that divides exactly they fall on its borders
    x[1, :16] = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5])
    (got,) = session.run(None, {"x": x, "s": np.array(scale, np.float32)})
    np.testing.assert_allclose(got, fake_nvfp4(x, scale), rtol=1e-6, atol=0)


def test_ties_go_to_the_even_mantissa(session: object) -> None:
    # the largest magnitude 6 with input scale 1 gives block scale 1: values are the grid's own
    block = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5])
    x = np.tile(block, 2)[None].astype(np.float32)
    (got,) = session.run(None, {"x": x, "s": np.array(1, np.float32)})
    want = [0, 0, 1, 1, 2, 2, 4, 4, 6, 0, -1, -1, -2, -2, -4, -4]
    np.testing.assert_array_equal(got[0], np.tile(np.array(want, np.float32), 2))


def test_nibbles_in_order() -> None:
    """Every E2M1 code, against ml_dtypes."""
    codes = np.arange(16, dtype=np.uint8)
    packed = (codes[0::2] | (codes[1::2] << 4)).reshape(1, 8)
    scales = np.array([[2.0]], dtype=ml_dtypes.float8_e4m3fn)
    got = dequantize_nvfp4(packed, scales, np.array(0.5, np.float32), shape=(1, 16), block=16)
    np.testing.assert_array_equal(got[0], codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
