"""Where ``compare -o`` and ``bench -o`` write: a folder that cannot be made is refused before the work, with a code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtforge.cli.app import app


@pytest.mark.parametrize("output", ["file", "file/below", "/proc/nowhere", "n" * 300, "loop"], ids=range(5))
@pytest.mark.parametrize("command", ["compare", "bench"])
def test_a_folder_that_cannot_be_made_is_refused(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "loop").symlink_to("loop")
    arguments = ["one", "two"] if command == "compare" else ["--url", "127.0.0.1:9", "--model", "x"]
    # what is no path for the system at all is refused of every option
    code = "TF-CLI-064" if output.startswith(("file", "/proc")) else "TF-CLI-022"
    result = CliRunner().invoke(app, [command, *arguments, "-o", output, "--json"])
    assert result.exit_code == 2 and json.loads(result.stdout)["error"]["code"] == code, result.stdout
    assert (tmp_path / "file").read_text() == "kept"
