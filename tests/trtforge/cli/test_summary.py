"""The end of a run: what a person reads before the report."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtforge.cli.summary import bundle_rows, show_run
from trtforge.ground.console import Console
from trtforge.pipeline.result import RunResult, StageOutcome

_INTERVAL = {"value": 11.0, "low": 10.0, "high": 12.0}
_SUMMARY: dict[str, Any] = {
    "model": "m",
    "architecture": "LlamaForCausalLM",
    "format": "fp8",
    "kv_cache": "fp8",
    "bytes": {"checkpoint": 8, "quantized": 4, "engine": 4},
    "perplexity": {"baseline": _INTERVAL, "quantized": _INTERVAL, "increase": _INTERVAL},
    "parity": {},
    "limits": {"max_batch_size": 4},
}
_ABSENT = {"parity": {"reason": "no runner", "gates": ["top1_agreement", "engine_kl"]}}


@pytest.mark.parametrize(
    ("target", "compiled", "words"),
    [
        ("trtllm-engine", True, "yes"),
        ("trtllm-engine", False, "NO: compile it on the GPU machine"),
        ("trtllm-llmapi", False, "nothing to compile"),
    ],
)
def test_an_engine_that_is_missing_is_told_from_one_that_there_is_not(target: str, compiled: bool, words: str) -> None:
    rows = dict(bundle_rows(_SUMMARY | {"target": target, "compiled": compiled}))
    assert rows["compiled"].startswith(words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "verdict PASSED"),
        (
            {"target": "trtllm-engine", "compiled": False, "not_run": _ABSENT},
            "verdict INCOMPLETE: no verdict on top1_agreement, engine_kl",
        ),
    ],
)
def test_a_run_whose_gates_had_no_verdict_does_not_end_as_passed(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    bundle = SimpleNamespace(summary=_SUMMARY | more, manifest={"files": [], "gates": []}, path=tmp_path)
    done = RunResult(
        recipe="r",
        seconds=1.0,
        bundle=tmp_path,
        log=tmp_path / "a.log",
        outcomes=[StageOutcome("bundle", "ran", 1.0, bundle)],
    )
    out = io.StringIO()
    show_run(Console("human", out=out, err=io.StringIO()), "r", done)
    assert words in out.getvalue().splitlines()
    assert words.upper().startswith(f"VERDICT {done.verdict}".upper())


def test_a_run_that_stops_before_its_bundle_has_no_verdict() -> None:
    assert RunResult("r").verdict is None and RunResult("r").to_json()["gates_without_verdict"] == []
