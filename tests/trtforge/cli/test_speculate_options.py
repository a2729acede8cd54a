"""Options of ``trtforge speculate train`` that no training could follow end it before its first stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtforge.cli.main import invoke


@pytest.mark.parametrize(
    "options",
    [
        ["--tokens", "0"],
        ["--tokens", "9" * 40],
        ["--epochs", "nan"],
        ["--epochs", "inf"],
        ["--steps", "9" * 30],
        ["--seed", "-1"],
        ["--seed", "9" * 40],
        ["--draft-vocab", "1"],
        ["--time-budget", "-5min"],
        ["--output", "file"],
        ["--output", "file/head"],
    ],
)
def test_it_is_refused_by_name(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("r.yaml").write_text("name: x\nmodel: {source: nowhere}\n")
    assert invoke(["speculate", "train", "r.yaml", *options]) == 2
    out = capsys.readouterr()
    said = out.out + out.err
    assert "TF-CLI-" in said and options[0] in said
