"""The one-stage commands for real, on the tiny model: no recipe, only options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny import write_tiny_llama
from trtforge.cli.main import invoke

pytestmark = pytest.mark.slow


def test_quantize_and_build_from_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTFORGE_HOME", str(tmp_path / "store"))
    write_tiny_llama(tmp_path / "model")
    common = ["--format", "fp8", "--kv-cache", "fp8", "--set", "quantize.calibration.samples=2", "--json"]
    assert invoke(["quantize", "model", "--output", "quantized", *common]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [stage["stage"] for stage in document["stages"]] == ["intake", "quantize"]
    assert (tmp_path / "quantized" / "hf_quant_config.json").is_file()
    assert invoke(["build", "model", "--kv-memory", "8MiB", *common]) == 0
    stages = {stage["stage"]: stage["status"] for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert stages == {"intake": "cached", "quantize": "cached", "graph": "ran", "build": "ran"}
