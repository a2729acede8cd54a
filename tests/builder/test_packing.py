"""Repacking moves nibbles and changes none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from builder.graphs import packing
from builder.graphs.packing import plan_packed, write_packed
from tests.support.tiny import write_safetensors
from trtforge.formats.int4_awq import REPACKING, repack_rows
from trtforge.ground.safetensors_header import read_header, read_headers


def modelopt_pack(values: np.ndarray) -> np.ndarray:
    """ModelOpt's pack_int4_in_uint8 for signed values [N, K] (modelopt.torch.export.quant_utils)."""
    pairs = values.T.reshape(values.shape[1], values.shape[0] // 2, 2)
    packed = (pairs[..., 0] & 0x0F) | ((pairs[..., 1] & 0x0F) << 4)
    return np.ascontiguousarray(packed.T).view(np.uint8)


values = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda s: arrays(np.int8, (2 * s[0], 2 * s[1]), elements=st.integers(-8, 7))
)


@given(values)
def test_onnx_reads_what_modelopt_packed(matrix: np.ndarray) -> None:
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=matrix.shape)
    tensor.raw_data = repack_rows(modelopt_pack(matrix)).tobytes()
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), matrix)


def test_the_file_is_safetensors_written_in_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matrices = {f"m{i}.weight": rng.integers(-8, 8, (2 * (3 + i), 8), dtype=np.int8) for i in range(3)}
    write_safetensors(tmp_path / "model.safetensors", {n: ("U8", modelopt_pack(m)) for n, m in matrices.items()})
    headers = read_headers(tmp_path)
    weights = {name: (info, REPACKING) for name, info in headers.items()}
    places, header = plan_packed(weights)
    monkeypatch.setattr(packing, "_BAND", 16)  # two rows of packed bytes at a time
    write_packed(tmp_path, weights, header, tmp_path)
    written, _ = read_header(tmp_path / "packed.safetensors")
    assert written == places
    data = (tmp_path / "packed.safetensors").read_bytes()
    for name, matrix in matrices.items():
        info = places[name]
        tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=matrix.shape)
        tensor.raw_data = data[info.offset : info.offset + info.nbytes]
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), matrix)
    assert not list(tmp_path.glob("*.partial"))
