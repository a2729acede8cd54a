"""The header reader: agreement with the reference library, and no crash on damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.refusals import refusal
from tests.support.tiny import to_bfloat16_bits, write_safetensors, write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import (
    INDEX_NAME,
    plain_floats,
    read_header,
    read_headers,
    refuse_pointer,
    weight_files,
)

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 269060552\n"


def code_of(call: Callable[..., Any], *arguments: Any) -> str:
    return refusal(call, *arguments).code


def raw_file(path: Path, header: object, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_agrees_with_the_reference_library(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_tiny_llama(tmp_path, shards=3)
    headers = read_headers(tmp_path)
    for file in weight_files(tmp_path):
        with safe_open(tmp_path / file, framework="np") as reference:
            names = set(reference.keys())
            assert names == {name for name, info in headers.items() if info.file == file}
            for name in names:
                assert tuple(reference.get_slice(name).get_shape()) == headers[name].shape


def test_offsets_point_at_the_bytes(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_safetensors(tmp_path / "model.safetensors", {"b": ("F32", array), "a": ("F32", array[:1])})
    info = read_headers(tmp_path)["b"]
    assert info.elements == 12
    raw = (tmp_path / info.file).read_bytes()[info.offset : info.offset + info.nbytes]
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(info.shape), array)


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        pytest.param({"a": entry(0, 8)}, b"\0" * 4, id="data cut off"),
        pytest.param({"a": entry(0, 4)}, b"\0" * 8, id="bytes left over"),
        pytest.param({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12, id="overlap"),
        pytest.param({"a": entry(0, 4), "b": entry(8, 12)}, b"\0" * 12, id="hole"),
        pytest.param({"a": entry(4, 0, [4])}, b"\0" * 4, id="reversed"),
        pytest.param({"a": entry(0, 4, [5])}, b"\0" * 4, id="shape does not fill it"),
        pytest.param({"a": entry(0, 4, [-4])}, b"\0" * 4, id="negative size"),
        pytest.param({"a": entry(0, 4, [True])}, b"\0" * 4, id="boolean size"),
        pytest.param({"a": entry(0, 4, [2**40, 2**40])}, b"\0" * 4, id="astronomic shape"),
        pytest.param({"a": entry(0, 4, dtype="Q9")}, b"\0" * 4, id="unknown type"),
        pytest.param({"a": {"dtype": "U8", "shape": [1]}}, b"\0", id="no offsets"),
        pytest.param({"a": 3}, b"", id="entry is no map"),
        pytest.param({"__metadata__": {"a": 1}}, b"", id="metadata is no map of strings"),
        pytest.param([1, 2], b"", id="header is a list"),
        pytest.param(b"{not json", b"", id="header is no JSON"),
        pytest.param(b"[" * 100_000, b"", id="header nested without end"),
        pytest.param(b'{"a":{},"a":{}}', b"", id="a name twice"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: object, data: bytes) -> None:
    path = raw_file(tmp_path / "model.safetensors", header, data)
    assert code_of(read_header, path) == "TF-SRC-005"


@pytest.mark.parametrize("content", [b"", b"\1\2", (2**63).to_bytes(8, "little"), (500).to_bytes(8, "little") + b"{}"])
def test_short_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert code_of(read_header, path) == "TF-SRC-005"


def test_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(POINTER)
    assert code_of(read_header, path) == "TF-SRC-004"
    assert code_of(refuse_pointer, path) == "TF-SRC-004"


def test_missing_shard(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert code_of(read_headers, tmp_path) == "TF-SRC-006"
    (tmp_path / INDEX_NAME).unlink()  # without an index the names still tell
    assert code_of(read_headers, tmp_path) == "TF-SRC-006"


def test_shards_without_index(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=2)
    before = read_headers(tmp_path)
    (tmp_path / INDEX_NAME).unlink()
    assert read_headers(tmp_path) == before


def edit_index(directory: Path, **changes: str | None) -> None:
    path = directory / INDEX_NAME
    index = json.loads(path.read_text())
    for name, file in changes.items():
        if file is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = file
    path.write_text(json.dumps(index))


def test_index_at_odds_with_its_shards(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=2)
    good = (tmp_path / INDEX_NAME).read_text()
    edit_index(tmp_path, **{"model.ghost.weight": "model-00001-of-00002.safetensors"})
    assert code_of(read_headers, tmp_path) == "TF-SRC-007"
    (tmp_path / INDEX_NAME).write_text(good)
    edit_index(tmp_path, **{"model.norm.weight": None})
    assert code_of(read_headers, tmp_path) == "TF-SRC-007"
    for text in ("{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
        (tmp_path / INDEX_NAME).write_text(text)
        assert code_of(read_headers, tmp_path) == "TF-SRC-007"


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b", "..\\x", "", "."])
def test_index_may_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    write_tiny_llama(tmp_path, shards=2)
    edit_index(tmp_path, **{"model.norm.weight": name})
    assert code_of(read_headers, tmp_path) == "TF-SRC-003"


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for number in (1, 2):
        write_safetensors(tmp_path / f"model-{number:05d}-of-00002.safetensors", {"a": ("U8", np.zeros(1, np.uint8))})
    assert code_of(read_headers, tmp_path) == "TF-SRC-007"


def test_several_files_without_index(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_safetensors(tmp_path / f"{name}.safetensors", {name: ("U8", np.zeros(1, np.uint8))})
    assert code_of(read_headers, tmp_path) == "TF-SRC-007"


def test_no_weights(tmp_path: Path) -> None:
    assert code_of(read_headers, tmp_path) == "TF-SRC-028"


VALID = {
    "a": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": ("BF16", np.arange(4, dtype=np.uint16)),
    "c.d": ("U8", np.zeros((0, 3), np.uint8)),
}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutations_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    """Flipped, inserted, deleted and cut bytes: a header that accounts for the whole file, or a coded refusal."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, VALID)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, max(0, len(raw) - 1)))
        kind = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        if kind == "set" and raw:
            raw[position] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            raw[position:position] = data.draw(st.binary(min_size=1, max_size=9))
        elif kind == "delete":
            del raw[position : position + data.draw(st.integers(1, 9))]
        else:
            del raw[position:]
    path.write_bytes(bytes(raw))
    try:
        tensors, _ = read_header(path)
    except ForgeError as error:
        assert error.code in {"TF-SRC-004", "TF-SRC-005"}
    else:
        assert sum(info.nbytes for info in tensors.values()) == len(raw) - 8 - int.from_bytes(raw[:8], "little")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "x"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), json_values), st.binary(max_size=16))
def test_any_json_header_is_judged(tmp_path: Path, header: dict[str, object], data: bytes) -> None:
    path = raw_file(tmp_path / "model.safetensors", header, data)
    try:
        read_header(path)
    except ForgeError as error:
        assert error.code == "TF-SRC-005"


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_plain_floats_are_read_exactly(dtype: str) -> None:
    values = np.array([0.0, -0.5, 211.0, 1.0078125, float("inf")], dtype=np.float32)
    kinds = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
    raw = to_bfloat16_bits(values) if dtype == "BF16" else values.astype(kinds[dtype])
    wanted = tuple(values.astype(kinds.get(dtype, np.float32)).astype(float).tolist())
    assert plain_floats(dtype, raw.tobytes()) == wanted
    assert plain_floats(dtype, raw.tobytes()[:-1]) is None and plain_floats(dtype, b"") == ()


def test_quantized_values_are_no_plain_floats() -> None:
    assert plain_floats("F8_E4M3", b"\0") is None and plain_floats("I8", b"\0") is None
