"""perf_analyzer as a process: an export that is empty or cut is measured again, then refused with its own words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evals.speed import perf_analyzer
from trtforge.ground.errors import ForgeError

EXPORT = {
    "experiments": [
        {
            "requests": [
                {
                    "timestamp": 0,
                    "response_timestamps": [1_000_000, 2_000_000],
                    "response_outputs": [{"text_output": "a"}, {"text_output": "b"}],
                }
            ]
        }
    ]
}
WHOLE = json.dumps(EXPORT)
STAND_IN = """#!{python}
import pathlib, sys
here = pathlib.Path({here!r})
export = pathlib.Path(sys.argv[sys.argv.index("--profile-export-file") + 1])
count = len(list(here.glob("call-*")))
(here / f"call-{{count}}").touch()
texts = {texts!r}
text = texts[min(count, len(texts) - 1)]
print("Measurement of 1 request is complete")
if text is not None:
    export.write_text(text)
"""


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str | None) -> Any:
    """A sweep of one level with a stand-in that writes ``texts`` one call after another."""
    program = folder / "perf_analyzer"
    program.write_text(STAND_IN.format(python=sys.executable, here=str(folder), texts=list(texts)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(perf_analyzer, "find_perf_analyzer", lambda: program)
    return perf_analyzer.measure(
        grpc_url="127.0.0.1:1", model="m", prompts=["a"], concurrency=[1], requests_per_level=1, max_tokens=2
    )


def calls(folder: Path) -> int:
    return len(list(folder.glob("call-*")))


def test_a_whole_export_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (level,) = measure(tmp_path, monkeypatch, WHOLE)
    assert calls(tmp_path) == 1 and level.errors == 0


@pytest.mark.parametrize("cut", ["", WHOLE[:40], None, "[]", '{"experiments": []}', '{"experiments": [{}]}'])
def test_a_cut_export_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str | None) -> None:
    (level,) = measure(tmp_path, monkeypatch, cut, WHOLE)
    assert calls(tmp_path) == 2 and level.errors == 0


@pytest.mark.parametrize("cut", ["", WHOLE[:40], None, "[]"])
def test_twice_is_a_coded_error_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str | None
) -> None:
    with pytest.raises(ForgeError) as caught:
        measure(tmp_path, monkeypatch, cut)
    error = caught.value
    assert error.code == "TF-BEN-006" and calls(tmp_path) == 2
    assert "Measurement of 1 request is complete" in str(error.why)
    assert len(error.numbers["faults"]) == 2
    assert error.numbers["export_bytes"] == len(cut or "")
