"""``engine info`` says what the kernels do to the stored weights, and what parity read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.executor_support import tiny_engine
from trtforge.cli.main import invoke


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert invoke(["engine", "info", *arguments]) == 0
    out = capsys.readouterr()
    return " ".join((out.out + out.err).split())


def test_kept_rounded_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_engine(tmp_path, "int4_awq")
    text = shown(capsys, str(tmp_path), "--capability", "avx512_bf16")
    assert "host_int4" in text and "kept" in text and "rounded" not in text and "read back" not in text
    assert "rounded to float16 below 2^-14" in shown(capsys, str(tmp_path), "--capability", "avx2")
    evidence = tmp_path / "evidence" / "parity.json"
    evidence.parent.mkdir()
    evidence.write_text(json.dumps({"weights": {"weights": 134_000, "changed": 12}}))
    assert "parity read back 134,000 packed weights: 12 are not the stored ones" in shown(capsys, str(tmp_path))
    for text in ("{", "[]", '{"weights": null}', '{"weights": {"weights": "many", "changed": 0}}'):
        evidence.write_text(text)
        assert "read back" not in shown(capsys, str(tmp_path))
