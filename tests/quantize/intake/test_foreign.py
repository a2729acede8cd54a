"""Checkpoints that other tools quantized: what becomes of every weight, and what is refused by its name.

Weights are packed here by code of its own, from the tools' descriptions, and de-quantized as each tool does it; what
intake writes is read by this package's formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.audit import audit_checkpoint
from quantize.intake import inspect_source
from tests.quantize.intake.folders import fetch
from tests.support.refusals import refusal
from tests.support.tiny import to_bfloat16_bits, write_safetensors, write_tiny_llama
from trtforge.ground.e4m3 import decode
from trtforge.ground.safetensors_header import TensorInfo, read_headers

Tensors = dict[str, tuple[str, np.ndarray]]
GROUP = 32
NUMPY = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "F8_E4M3": "u1", "U8": "u1"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def stored(folder: Path, name: str) -> tuple[str, np.ndarray]:
    """Type and codes of a tensor as they lie there."""
    info: TensorInfo = read_headers(folder)[name]
    raw = (folder / info.file).read_bytes()[info.offset : info.offset + info.nbytes]
    return info.dtype, np.frombuffer(raw, NUMPY[info.dtype]).reshape(info.shape)


def values(folder: Path, name: str) -> np.ndarray:
    dtype, found = stored(folder, name)
    return (found.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else found


def words(nibbles: np.ndarray) -> np.ndarray:
    """[A, B] nibbles, eight along the last axis in an int32, the first lowest."""
    parts = nibbles.astype(np.uint32).reshape(nibbles.shape[0], -1, 8)
    return sum(parts[:, :, place] << np.uint32(4 * place) for place in range(8)).astype(np.uint32).view("<i4")


def awq_words(nibbles: np.ndarray) -> np.ndarray:
    """As AutoAWQ packs: the columns 0 2 4 6 1 3 5 7 of eight."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return words(nibbles.reshape(nibbles.shape[0], -1, 8)[:, :, order].reshape(nibbles.shape))


class Model:
    """A tiny Llama whose linears are quantized by ``pack``; :attr:`truth` is what each weight means."""

    def __init__(self, folder: Path, section: dict[str, Any], pack: Callable[[Model, str, int, int], Tensors]) -> None:
        write_tiny_llama(folder, tie=False)
        self.folder, self.random, self.truth = folder, np.random.default_rng(3), {}
        tensors: Tensors = {}
        for name, info in read_headers(folder).items():
            if "_proj" in name:
                tensors |= pack(self, name.removesuffix(".weight"), *info.shape)
            else:
                tensors[name] = stored(folder, name)
        write_safetensors(folder / "model.safetensors", tensors)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": section}))

    def int4(self, module: str, rows: int, columns: int, zero: int = 8) -> tuple[np.ndarray, np.ndarray]:
        """Nibbles [N, K] and F16 scales [N, K/G]; the meaning is remembered."""
        nibbles = self.random.integers(0, 16, (rows, columns)).astype(np.uint8)
        scales = self.random.uniform(0.001, 0.02, (rows, columns // GROUP)).astype("<f2")
        wide = np.repeat(scales.astype(np.float32), GROUP, axis=1)
        self.truth[module] = (nibbles.astype(np.float32) - zero) * wide
        return nibbles, scales


def ct_int4(model: Model, module: str, rows: int, columns: int) -> Tensors:
    nibbles, scales = model.int4(module, rows, columns)
    return {
        f"{module}.weight_packed": ("I32", words(nibbles)),
        f"{module}.weight_scale": ("F16", scales),
        f"{module}.weight_shape": ("I64", np.array([rows, columns], "<i8")),
    }


def awq(model: Model, module: str, rows: int, columns: int, zero: int = 8) -> Tensors:
    nibbles, scales = model.int4(module, rows, columns, zero)
    zeros = np.full((columns // GROUP, rows), zero, np.uint8)
    return {
        f"{module}.qweight": ("I32", awq_words(nibbles.T.copy())),
        f"{module}.qzeros": ("I32", awq_words(zeros)),
        f"{module}.scales": ("F16", scales.T.copy()),
    }


def gptq(model: Model, module: str, rows: int, columns: int, stored: int = 7, ordered: bool = False) -> Tensors:
    nibbles, scales = model.int4(module, rows, columns)
    order = np.arange(columns, dtype="<i4") // GROUP
    return {
        f"{module}.qweight": ("I32", words(nibbles).T.copy()),
        f"{module}.qzeros": ("I32", words(np.full((columns // GROUP, rows), stored, np.uint8))),
        f"{module}.scales": ("F16", scales.T.copy()),
        f"{module}.g_idx": ("I32", model.random.permutation(order).astype("<i4") if ordered else order),
        f"{module}.bias": ("F16", np.zeros(rows, "<f2")),
    }


def fp8(model: Model, module: str, rows: int, columns: int) -> Tensors:
    codes = model.random.integers(0, 0x7E, (rows, columns)).astype("u1")
    scale = np.array([0.0078125 * (1 + len(model.truth) / 8)], "<f4")
    bits = to_bfloat16_bits(scale)
    kept = (bits.astype(np.uint32) << 16).view(np.float32)
    model.truth[module] = decode(codes) * kept
    return {
        f"{module}.weight": ("F8_E4M3", codes),
        f"{module}.weight_scale": ("BF16", bits),
        f"{module}.input_scale": ("BF16", to_bfloat16_bits(scale * 3)),
    }


def fp8_rows(model: Model, module: str, rows: int, columns: int) -> Tensors:
    codes = model.random.integers(0, 0x7E, (rows, columns)).astype("u1")
    bits = to_bfloat16_bits(model.random.uniform(0.001, 0.02, (rows, 1)).astype("<f4"))
    model.truth[module] = decode(codes) * (bits.astype(np.uint32) << 16).view(np.float32)
    return {f"{module}.weight": ("F8_E4M3", codes), f"{module}.weight_scale": ("BF16", bits)}


def nvfp4_weights(model: Model, module: str, rows: int, columns: int) -> Tensors:
    return {name: value for name, value in nvfp4(model, module, rows, columns).items() if "input" not in name}


def nvfp4(model: Model, module: str, rows: int, columns: int) -> Tensors:
    codes = model.random.integers(0, 16, (rows, columns)).astype("u1")
    blocks = model.random.integers(0x28, 0x40, (rows, columns // 16)).astype("u1")
    model.truth[module] = E2M1[codes] * np.repeat(decode(blocks), 16, axis=1) / np.float32(4096)
    return {
        f"{module}.weight_packed": ("U8", codes[:, 0::2] | (codes[:, 1::2] << 4)),
        f"{module}.weight_scale": ("F8_E4M3", blocks),
        f"{module}.weight_global_scale": ("F32", np.array([4096.0], "<f4")),
        f"{module}.input_global_scale": ("F32", np.array([128.0], "<f4")),
    }


def mxfp4(model: Model, module: str, rows: int, columns: int) -> Tensors:
    codes = model.random.integers(0, 16, (rows, columns)).astype("u1")
    exponents = model.random.integers(115, 124, (rows, columns // 32)).astype("u1")
    model.truth[module] = E2M1[codes] * np.repeat(2.0 ** (exponents.astype(np.float32) - 127), 32, axis=1)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return {f"{module}.weight_packed": ("U8", packed), f"{module}.weight_scale": ("U8", exponents)}


def mxfp8(model: Model, module: str, rows: int, columns: int) -> Tensors:
    codes = model.random.integers(0, 0x7E, (rows, columns)).astype("u1")
    exponents = model.random.integers(115, 124, (rows, columns // 32)).astype("u1")
    model.truth[module] = decode(codes) * np.repeat(2.0 ** (exponents.astype(np.float32) - 127), 32, axis=1)
    return {f"{module}.weight": ("F8_E4M3", codes), f"{module}.weight_scale": ("U8", exponents)}


def blocks(model: Model, module: str, rows: int, columns: int, power: bool = True) -> Tensors:
    codes = model.random.integers(0, 0x7E, (rows, columns)).astype("u1")
    shape = (rows // 16, columns // 16)
    exponents = 2.0 ** model.random.integers(-12, -4, shape)
    scales = (exponents if power else exponents * 1.37).astype("<f4")
    model.truth[module] = decode(codes) * np.repeat(np.repeat(scales, 16, axis=0), 16, axis=1)
    return {f"{module}.weight": ("F8_E4M3", codes), f"{module}.weight_scale_inv": ("F32", scales)}


def groups(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
        **more,
    }


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False}
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
LOCAL = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
KINDS: dict[str, tuple[str | None, dict[str, Any], Callable[..., Tensors]]] = {
    "compressed-tensors int4": ("int4_awq", groups("pack-quantized", INT4, None), ct_int4),
    "awq": ("int4_awq", AWQ, awq),
    "gptq": ("int4_awq", GPTQ, gptq),
    "gptq v2": ("int4_awq", {**GPTQ, "checkpoint_format": "gptq_v2"}, lambda *a: gptq(*a, stored=8)),
    "gptq, desc_act without an order": ("int4_awq", {**GPTQ, "desc_act": True}, gptq),
    "compressed-tensors fp8": ("fp8", groups("float-quantized", STATIC, STATIC), fp8),
    "AutoFP8": ("fp8", {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, fp8),
    "compressed-tensors fp8 by row and token": (
        "fp8_rowwise",
        groups("float-quantized", {**STATIC, "strategy": "channel"}, {**STATIC, "strategy": "token", "dynamic": True}),
        fp8_rows,
    ),
    "compressed-tensors nvfp4 weights": ("w4a16_nvfp4", groups("nvfp4-pack-quantized", LOCAL, None), nvfp4_weights),
    "compressed-tensors nvfp4": ("nvfp4", groups("nvfp4-pack-quantized", LOCAL, LOCAL), nvfp4),
    "compressed-tensors mxfp4": (None, groups("mxfp4-pack-quantized", {**INT4, "type": "float"}, None), mxfp4),
    "compressed-tensors mxfp8": (
        None,
        groups("mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}, None),
        mxfp8,
    ),
    "fp8 blocks": (
        None,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]},
        blocks,
    ),
}


def meaning(folder: Path, module: str, target: str | None) -> np.ndarray:
    """A written weight de-quantized by the definitions of this package's formats."""
    weight = values(folder, f"{module}.weight")
    if target is None:
        return weight
    scale = values(folder, f"{module}.weight_scale")
    if target == "fp8":
        return decode(weight) * scale
    if target == "fp8_rowwise":
        return decode(weight) * scale[:, None]
    if target in ("nvfp4", "w4a16_nvfp4"):
        codes = np.stack([weight & 0xF, weight >> 4], axis=2).reshape(weight.shape[0], -1)
        return E2M1[codes] * np.repeat(decode(scale), 16, axis=1) * values(folder, f"{module}.weight_scale_2")
    nibbles = np.stack([weight & 0xF, weight >> 4], axis=1).reshape(-1, weight.shape[1]).astype(np.int8)
    signed = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.float32)
    return signed * np.repeat(scale, weight.shape[1] // scale.shape[1], axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_keeps_its_value(tmp_path: Path, kind: str) -> None:
    target, section, pack = KINDS[kind]
    model = Model(tmp_path / "model", section, pack)
    looked = inspect_source("model", tmp_path)
    assert looked is not None and looked.model.prequantized == target
    info = fetch("model", tmp_path)
    assert info.model.prequantized == target and len(model.truth) == 14
    for module, wanted in model.truth.items():
        np.testing.assert_array_equal(meaning(tmp_path / "out", module, target), wanted)
    assert not any(name.endswith(("_proj.bias", "qzeros", "weight_packed")) for name in read_headers(tmp_path / "out"))
    report = audit_checkpoint(tmp_path / "out")
    assert report.quant_format == (target or "none") and report.passed, [
        finding.headline for finding in report.findings
    ]
    again = inspect_source("out", tmp_path)
    assert again is not None and again.model.prequantized == target, "what was written is taken as it is"


@pytest.mark.parametrize("kind", ["gptq", "compressed-tensors nvfp4", "fp8 blocks"])
def test_what_comes_in_becomes_a_graph(tmp_path: Path, kind: str) -> None:
    from builder.graphs.build import build_graph

    _, section, pack = KINDS[kind]
    Model(tmp_path / "model", section, pack)
    fetch("model", tmp_path)
    build_graph(tmp_path / "out", tmp_path / "graph")
    assert (tmp_path / "graph" / "model.onnx").is_file()


def test_scales_of_keys_and_values_get_this_package_s_names(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", groups("float-quantized", STATIC, STATIC, kv_cache_scheme=STATIC), fp8)
    tensors = {name: stored(model.folder, name) for name in read_headers(model.folder)}
    for layer in range(2):
        for number, kind in enumerate("kv"):
            bits = to_bfloat16_bits(np.array([0.5 + layer + number / 4], np.float32))
            tensors[f"model.layers.{layer}.self_attn.{kind}_scale"] = ("BF16", bits)
    write_safetensors(model.folder / "model.safetensors", tensors)
    info = fetch("model", tmp_path)
    assert info.model.prequantized_kv_cache == "fp8"
    assert float(values(tmp_path / "out", "model.layers.1.self_attn.v_proj.v_scale")) == 1.75


REFUSED: dict[str, tuple[str, dict[str, Any], Callable[..., Tensors]]] = {
    "awq with zero points off the middle": ("zero point", AWQ, lambda *a: awq(*a, zero=5)),
    "gptq with act-order": ("desc_act", {**GPTQ, "desc_act": True}, lambda *a: gptq(*a, ordered=True)),
    "gptq of eight bits": ("of 8 bits", {**GPTQ, "bits": 8}, gptq),
    "fp8 blocks under other scales": (
        "powers of two",
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]},
        lambda *a: blocks(*a, power=False),
    ),
    "dynamic fp8": ("computed while it runs", groups("float-quantized", STATIC, {**STATIC, "dynamic": True}), fp8),
    "fp8 by channel": ("scale a channel", groups("float-quantized", {**STATIC, "strategy": "channel"}, STATIC), fp8),
    "asymmetric int4": ("with zero points", groups("pack-quantized", {**INT4, "symmetric": False}, None), ct_int4),
    "groups of 16": ("groups of 16", groups("pack-quantized", {**INT4, "group_size": 16}, None), ct_int4),
    "a version of AWQ": ("version gemv", {**AWQ, "version": "gemv"}, awq),
    "a method that nothing knows": ("quip", {"quant_method": "quip"}, awq),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_loses_something_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    name, section, pack = REFUSED[kind]
    Model(tmp_path / "model", section, pack)
    error = refusal(fetch, "model", tmp_path)
    assert error.code == "TF-SRC-024" and name in error.message


def test_a_faulty_checkpoint_does_not_come_in(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", KINDS["compressed-tensors nvfp4"][1], nvfp4)
    path = model.folder / "model.safetensors"
    info = read_headers(model.folder)["model.layers.0.mlp.up_proj.weight_scale"]
    data = bytearray(path.read_bytes())
    data[info.offset + 5] = 0x7F
    path.write_bytes(bytes(data))
    error = refusal(fetch, "model", tmp_path)
    assert error.code == "TF-SRC-051" and "TF-K7-103" in error.message
