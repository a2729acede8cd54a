"""``trtforge engine info`` over an engine.json that was changed by hand: told or coded, never a fault of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import ODD, changed, places
from trtforge.cli.main import invoke

COMMON = {
    "version": 1, "name": "tiny", "quant_format": "none", "dtype": "float16",
    "limits": {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 64}, "vocab_size": 64, "ops_version": 2,
    "group_size": None, "linears": [{"name": "a", "shape": [64, 64], "stored": "bfloat16", "group_size": None}],
    "sha256": {"model.safetensors": "0" * 64, "draft/model.safetensors": "0" * 64},
}  # fmt: skip
TRTLLM: dict[str, Any] = {
    "version": 1, "name": "tiny", "quant_format": "fp8", "limits": {"max_batch_size": 4}, "compiled": False,
    "not_compiled": "no GPU", "kv_cache": {"format": "fp8", "block_size": 32},
    "parallel": {"tp": 1, "pp": 1, "ep": 1}, "tensorrt_llm": "1.2.1", "stack": "trtllm-1.2.1", "container": None,
}  # fmt: skip
RECORDS: dict[str, dict[str, Any]] = {
    "tensorrt": {
        **COMMON, "target": "tensorrt",
        "kv_cache": {"num_blocks": 8, "block_size": 16, "bytes_per_block": 4096, "format": "float16"},
        "tensorrt": {
            "version": "11.4.0.106", "gpu_architecture": "sm_90", "plugins": {"abi": "0123", "version": "1"},
            "decode_buckets": [1, 2, 4], "plan_bytes": 100, "plan": "engine.plan", "layers": 7, "aliased_io": False,
            "options": {"strip_weights": False, "weight_streaming": False, "refit": True, "workspace": None},
            "inputs": [{"name": "input_ids", "type": "INT64", "shape": ["T"]}], "outputs": ["logits"],
            "sizes": {"table": 4, "padding_blocks": 1, "rows": 4},
        },
    },
    "tensorrt-rtx": {
        **COMMON, "target": "tensorrt-rtx", "loads_in": "TensorRT for RTX",
        "kv_cache": {"bytes_per_request": 4096, "format": "float16", "layout": "linear"},
        "profiles": [{"name": "decode", "batch": [1, 4, 4], "row": [1, 1, 1]}],
        "engines": [{"architecture": "sm_80", "file": "sm_80.rtx", "bytes": 3, "sha256": "0"}],
    },
    "torch": {
        **COMMON, "target": "torch", "memory_plan": {"weights_bytes": 100, "sized_by": "memory"},
        "kv_cache": {"num_blocks": 8, "block_size": 16, "bytes_per_block": 4096, "format": "float16"},
        "host_abi": 3,
        "kernel_choices": [
            {"stored": "bfloat16", "capability": ["any"], "kernel": "onednn_f32", "native": True, "executed": "float32"}
        ],
    },
    "trtllm-engine": {
        **TRTLLM, "target": "trtllm-engine", "settings": {}, "scripts": ["build.sh"],
        "conversion": {"requantized": {"weights": 3, "linears": 1}},
        "draft": {**TRTLLM, "target": "trtllm-engine", "settings": {}},
    },
    "trtllm-llmapi": {**TRTLLM, "target": "trtllm-llmapi", "serve": ["trtllm-serve", "checkpoint"]},
}  # fmt: skip


@pytest.mark.parametrize("target", RECORDS)
def test_no_damage_is_a_fault_of_ours(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, refused = RECORDS[target], 0
    (tmp_path / "engine.json").write_text(json.dumps(record), encoding="utf-8")
    # files that are not there are told, and so is a machine without TensorRT; a record refused whole tests nothing
    assert invoke(("engine", "info", str(tmp_path))) == 1
    for at in places(record):
        for value in ODD:
            text = json.dumps(changed(record, at, value))
            (tmp_path / "engine.json").write_text(text, encoding="utf-8")
            code = invoke(("engine", "info", str(tmp_path)))
            said = capsys.readouterr()
            assert code in (0, 1, 2) and "TF-INTERNAL" not in said.err, (at, value, said.err)
            refused += code == 2 and "TF-BLD-020" in said.err
    assert refused > 100
