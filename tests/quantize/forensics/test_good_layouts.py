"""No false alarm: checkpoints as each tool writes them, small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantize.audit import audit_checkpoint
from tests.quantize.forensics import checkpoints as made

GOOD: dict[str, Callable[[], tuple[made.Tensors, dict[str, Any]]]] = {
    "modelopt-fp8-kv": lambda: made.modelopt("FP8", kv=True),
    "modelopt-nvfp4": lambda: made.modelopt("NVFP4", kv=True),
    "modelopt-nvfp4-moe": lambda: made.modelopt("NVFP4", moe=True),
    "modelopt-w4a16-nvfp4": lambda: made.modelopt("W4A16_NVFP4"),
    "modelopt-awq": lambda: made.modelopt("W4A16_AWQ"),
    "modelopt-mixed": lambda: made.modelopt("MIXED_PRECISION", kv=True),
    "ct-w4a16": lambda: made.compressed("pack-quantized"),
    "ct-w4a16-asymmetric": lambda: made.compressed("pack-quantized", symmetric=False),
    "ct-w4a16-actorder": lambda: made.compressed("pack-quantized", actorder="group", moe=True),
    "ct-fp8-static-kv": lambda: made.compressed("float-quantized", kv=True),
    "ct-fp8-dynamic": lambda: made.compressed("float-quantized", strategy="channel", moe=True),
    "ct-fp8-block": lambda: made.compressed("float-quantized", strategy="block"),
    "ct-int8": lambda: made.compressed("int-quantized"),
    "ct-nvfp4": lambda: made.compressed("nvfp4-pack-quantized"),
    "ct-mxfp4": lambda: made.compressed("mxfp4-pack-quantized"),
    "awq": lambda: made.awq(),
    "awq-moe": lambda: made.awq(moe=True),
    "gptq": lambda: made.gptq(),
    "gptq-v2-actorder": lambda: made.gptq(version="gptq_v2", desc_act=True),
    "fp8-blocks-moe": lambda: made.fp8_blocks(),
    "fp8-static": lambda: made.fp8_static(),
    "mxfp4-gpt-oss": lambda: made.mxfp4(),
    "unquantized": lambda: made.unquantized(),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_layout_has_no_finding(tmp_path: Path, name: str) -> None:
    tensors, sections = GOOD[name]()
    report = audit_checkpoint(made.write(tmp_path, tensors, sections, shards=3))
    assert [(finding.code, finding.headline) for finding in report.findings] == []
    assert report.passed and report.rules > 50


def test_a_good_tensorrt_llm_checkpoint_has_no_finding(tmp_path: Path) -> None:
    report = audit_checkpoint(made.trtllm(tmp_path))
    assert [(finding.code, finding.headline) for finding in report.findings] == []
    assert report.tool == "tensorrt-llm" and report.kv_cache == "fp8"


@pytest.mark.parametrize("name", GOOD)
def test_a_good_layout_agrees_with_the_checkpoint_that_it_was_made_of(tmp_path: Path, name: str) -> None:
    base = made.write(tmp_path / "base", *made.unquantized())
    tensors, sections = GOOD[name]()
    report = audit_checkpoint(made.write(tmp_path / "made", tensors, sections), base=base)
    assert [(finding.code, finding.headline) for finding in report.findings] == []


def test_a_bare_configuration_is_judged_by_what_it_says(tmp_path: Path) -> None:
    made.write(tmp_path, *made.modelopt("FP8"))
    (tmp_path / "model.safetensors").unlink()
    report = audit_checkpoint(tmp_path / "config.json")
    assert report.findings == [] and "TF-K7-103" in report.skipped and "TF-QNT-040" not in report.skipped


@pytest.mark.parametrize(
    "change",
    [
        {"quant_method": ["awq"]},
        {"bits": "a\0b", "w_bit": -1},
        {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": "x", "type": []}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": "x", "type": 3}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"block_structure": [0, "x"]}}}},
        {"quant_method": "fp8", "weight_block_size": [0, None]},
        {"quant_method": "gptq", "dynamic": {"-:(": {}}, "group_size": -1, "bits": 2**70},
    ],
)
def test_a_record_of_nonsense_is_a_finding_or_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    tensors, sections = made.awq()
    sections["quantization_config"].update(change)
    odd = {"rope_theta": "x", "rope_parameters": {"rope_theta": []}, "num_hidden_layers": 2**70, "num_experts": "y"}
    audit_checkpoint(made.write(tmp_path, tensors, sections, config=odd)).to_json()
