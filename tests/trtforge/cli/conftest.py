"""A command as a user gives it, with a folder of its own for what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtforge.cli.main import invoke


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in the test's folder: its exit code, and what it wrote to standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = invoke(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
