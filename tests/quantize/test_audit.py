"""The audit on hand-made exports: every fault is found, by its own code, without torch or weights."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.audit import Expected, audit_checkpoint
from tests.support.tiny import write_safetensors, write_tiny_llama
from trtforge.formats.table import format_row
from trtforge.ground.safetensors_header import read_headers

Tensors = dict[str, tuple[str, np.ndarray]]
_NUMPY = {"F32": "<f4", "F8_E4M3": "u1", "U8": "u1", "BF16": "<u2"}
GROUPS = {"fp8": None, "nvfp4": 16, "int4_awq": 64}


def export(directory: Path, name: str = "fp8", *, tie: bool = True, kv: str = "fp8", **changes: Any) -> Path:
    """An export with the right tensors and made-up values; ``changes`` edits tensors (None removes one)."""
    write_tiny_llama(directory, tie=tie)
    row, group = format_row(name), GROUPS[name]
    tensors: Tensors = {}
    for key, info in read_headers(directory).items():
        module = key.removesuffix(".weight")
        if "_proj" not in key:
            tensors[key] = (info.dtype, np.zeros(info.shape, _NUMPY[info.dtype]))
            continue
        for leaf, rule in row.tensors.items():
            shape = rule.expected_shape(*info.shape, group)
            dtype = "F32" if rule.dtype == "any" else rule.dtype
            tensors[f"{module}.{leaf}"] = (dtype, _values(f"{module.rpartition('.')[0]}.{leaf}", shape, dtype))
        if kv == "fp8" and module.endswith(("k_proj", "v_proj")):
            tensors[f"{module}.{module[-6]}_scale"] = ("F32", _values(module, (), "F32"))
    for key, value in changes.get("tensors", {}).items():
        if value is None:
            del tensors[key]
        else:
            tensors[key] = value
    write_safetensors(directory / "model.safetensors", tensors)
    section = {
        "quant_algo": row.algorithm,
        "kv_cache_quant_algo": None if kv == "none" else "FP8",
        "exclude_modules": ["lm_head", "model.embed_tokens"],
        **({"group_size": group} if group else {}),
        **changes.get("section", {}),
    }
    (directory / "hf_quant_config.json").write_text(json.dumps({"quantization": section}))
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": row.algorithm}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _values(seed: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Scales as calibration gives them: no two alike, those of linears that are fused the same."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    if dtype == "F32":
        return rng.uniform(0.001, 0.02, shape).astype("<f4")
    return rng.integers(0x28, 0x40, shape).astype(_NUMPY[dtype])  # 0.25 … 2 in E4M3


def codes(directory: Path, expected: Expected | None = None) -> list[str]:
    return [finding.code for finding in audit_checkpoint(directory, expected).findings]


Q0 = "model.layers.0.self_attn.q_proj"
K0, V1 = "model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.v_proj"


def f32(*values: float) -> tuple[str, np.ndarray]:
    return ("F32", np.array(values[0] if len(values) == 1 else values, "<f4"))


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "int4_awq"])
@pytest.mark.parametrize("kv", ["none", "fp8", "fp8_cast"])
def test_a_right_export_passes(tmp_path: Path, name: str, kv: str) -> None:
    report = audit_checkpoint(export(tmp_path, name, kv=kv), Expected(name, kv))
    assert report.findings == []
    assert report.passed
    assert (report.quant_format, report.kv_cache) == (name, kv)
    total = report.table[-1]
    assert total["kind"] == "total"
    assert total["bytes"] == sum(info.nbytes for info in read_headers(tmp_path).values())


def test_an_unquantized_checkpoint_passes(tmp_path: Path) -> None:
    assert codes(write_tiny_llama(tmp_path), Expected("none", "none")) == []


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("leaf", ["weight_scale", "input_scale"])
def test_scales_must_be_finite_and_positive(tmp_path: Path, leaf: str, value: float) -> None:
    assert codes(export(tmp_path, tensors={f"{Q0}.{leaf}": f32(value)})) == ["TF-K7-103"]


def test_a_nan_block_scale_is_found(tmp_path: Path) -> None:
    bad = np.full((256, 4), 0x30, np.uint8)
    bad[17, 3] = 0x7F
    report = audit_checkpoint(export(tmp_path, "nvfp4", tensors={f"{Q0}.weight_scale": ("F8_E4M3", bad)}))
    assert [finding.code for finding in report.findings] == ["TF-K7-103"]
    assert report.findings[0].names == (f"{Q0}.weight_scale",)


@pytest.mark.parametrize("leaf", ["weight_scale", "input_scale"])
def test_a_missing_scale_is_found(tmp_path: Path, leaf: str) -> None:
    report = audit_checkpoint(export(tmp_path, tensors={f"{Q0}.{leaf}": None}))
    assert [finding.code for finding in report.findings] == ["TF-K7-102"]
    assert f"{leaf} is missing" in report.findings[0].message


def test_all_ones_mean_no_calibration(tmp_path: Path) -> None:
    tensors = {key: f32(1.0) for key in read_headers(export(tmp_path / "a")) if key.endswith("input_scale")}
    assert codes(export(tmp_path / "b", tensors=tensors)) == ["TF-K7-104"]


def test_wrong_shape_and_dtype(tmp_path: Path) -> None:
    narrow = _values("narrow", (256, 3), "F8_E4M3")
    tensors = {f"{Q0}.weight_scale": ("F8_E4M3", narrow), f"{K0}.weight_scale_2": f32(0.1, 0.2)}
    report = audit_checkpoint(export(tmp_path, "nvfp4", tensors=tensors))
    assert [finding.code for finding in report.findings] == ["TF-K7-102", "TF-K7-102"]
    tensors = {f"{Q0}.weight_scale": ("BF16", np.array(0x3F00, "<u2"))}
    assert codes(export(tmp_path / "dtype", tensors=tensors)) == ["TF-K7-102"]


def test_group_size_of_the_record_must_be_that_of_the_scales(tmp_path: Path) -> None:
    assert set(codes(export(tmp_path, "int4_awq", section={"group_size": 32}))) == {"TF-K7-102"}


def test_quantized_against_the_exclude_list(tmp_path: Path) -> None:
    section = {"exclude_modules": ["lm_head", "model.embed_tokens", "model.layers.1*"]}
    report = audit_checkpoint(export(tmp_path, section=section))
    assert [finding.code for finding in report.findings] == ["TF-K6-101"]
    assert all(name.startswith("model.layers.1.") for name in report.findings[0].names)


def test_unquantized_without_an_exclude(tmp_path: Path) -> None:
    tensors = {f"{Q0}.{leaf}": None for leaf in ("weight_scale", "input_scale")}
    tensors[f"{Q0}.weight"] = ("BF16", np.zeros((256, 64), "<u2"))
    assert codes(export(tmp_path, tensors=tensors)) == ["TF-K6-102"]


def test_the_plan_is_checked_in_both_directions(tmp_path: Path) -> None:
    directory = export(tmp_path)
    linears = {key.removesuffix(".weight") for key in read_headers(directory) if "_proj.weight" in key}
    linears = {name for name in linears if not name.endswith("_scale")}
    assert codes(directory, Expected("fp8", "fp8", frozenset(linears))) == []
    assert codes(directory, Expected("fp8", "fp8", frozenset(linears - {Q0}))) == ["TF-K6-103"]
    assert codes(directory, Expected("fp8", "fp8", frozenset(linears | {"lm_head"}))) == ["TF-K6-104"]


def test_a_tied_head_stored_twice(tmp_path: Path) -> None:
    tensors = {"lm_head.weight": ("BF16", np.zeros((512, 64), "<u2"))}
    assert codes(export(tmp_path, tensors=tensors)) == ["TF-K6-105"]


def test_a_missing_untied_head_and_embedding(tmp_path: Path) -> None:
    assert codes(export(tmp_path / "a", tie=False, tensors={"lm_head.weight": None})) == ["TF-K6-106"]
    assert codes(export(tmp_path / "b", tensors={"model.embed_tokens.weight": None})) == ["TF-K6-107"]


def test_kv_scales_missing_in_one_layer(tmp_path: Path) -> None:
    report = audit_checkpoint(export(tmp_path, tensors={f"{V1}.v_scale": None}))
    assert [finding.code for finding in report.findings] == ["TF-K7-106"]
    assert report.findings[0].names == (f"{V1}.v_scale",)


def test_kv_scales_of_one_are_faults_unless_cast(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.self_attn.{kv}_proj.{kv}_scale" for i in range(2) for kv in "kv"]
    assert codes(export(tmp_path / "a", tensors=dict.fromkeys(names, f32(1.0)))) == ["TF-K7-108"]
    assert codes(export(tmp_path / "b", kv="fp8_cast"), Expected("fp8", "fp8_cast")) == []


def test_kv_scales_that_are_not_finite(tmp_path: Path) -> None:
    assert codes(export(tmp_path, tensors={f"{K0}.k_scale": f32(float("inf"))})) == ["TF-K7-107"]


def test_kv_scales_without_a_record(tmp_path: Path) -> None:
    assert codes(export(tmp_path, section={"kv_cache_quant_algo": None})) == ["TF-K7-105"]


def test_calibrated_kv_asked_but_not_exported(tmp_path: Path) -> None:
    assert codes(export(tmp_path, kv="fp8_cast"), Expected("fp8", "fp8")) == ["TF-QNT-042"]


def test_records_that_disagree(tmp_path: Path) -> None:
    assert "TF-QNT-041" in codes(export(tmp_path, section={"quant_algo": "NVFP4"}))
    assert "TF-QNT-040" in codes(export(tmp_path / "b", section={"quant_algo": "SOMETHING"}))
    assert codes(tmp_path / "b", Expected("fp8", "fp8")).count("TF-QNT-042") == 1


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_tokenizer_must_be_there(tmp_path: Path, content: str | None) -> None:
    directory = export(tmp_path)
    if content is None:
        (directory / "tokenizer.json").unlink()
    else:
        (directory / "tokenizer.json").write_text(content)
    assert codes(directory) == ["TF-K17-101"]


def test_report_is_json(tmp_path: Path) -> None:
    document = audit_checkpoint(export(tmp_path, tensors={f"{Q0}.input_scale": None})).to_json()
    assert json.loads(json.dumps(document))["findings"][0]["code"] == "TF-K7-102"
    assert document["passed"] is False
