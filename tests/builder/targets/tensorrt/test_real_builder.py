"""Our builder session against a real parser and builder of the same family: TensorRT for RTX, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.targets.tensorrt.versions import missing_operators

pytest.importorskip("tensorrt_rtx", reason="pip install 'trtforge[rtx]'")
ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("model", "fmt", "architecture", "version"),
    [
        ("LlamaForCausalLM", "none", "SM80", "10.14.1"),
        ("LlamaForCausalLM", "fp8", "SM89", "10.16.1"),
        ("LlamaForCausalLM", "nvfp4", "SM120", "11.4.0"),
        ("LlamaForCausalLM", "int4_awq", "SM80", "11.4.0"),
        ("Qwen2ForCausalLM", "fp8", "SM89", "11.4.0"),
        ("Qwen3ForCausalLM", "none", "SM80", "10.14.1"),
    ],
)
def test_the_lowered_graph_builds(
    graphs: Callable[..., Path], tmp_path: Path, model: str, fmt: str, architecture: str, version: str
) -> None:
    """Every format, biases, norms of heads, in the words of each release's parser (RTX takes all of them)."""
    missing = ",".join(sorted(missing_operators(version)))
    probe = str(Path(__file__).with_name("real_builder.py"))
    done = subprocess.run(
        [sys.executable, probe, str(graphs(fmt, model)), str(tmp_path), architecture, missing],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "failed" not in said, said
    assert said["layers"] > 0 and said["plan_bytes"] == (tmp_path / "engine.plan").stat().st_size
    assert said["events"] > 4, "the builder's own progress"
    assert (tmp_path / "timing.cache").is_file()
    # the plan is loaded once to ask for its memory, which wants a driver; nothing else may go wrong
    faults = [line for line in (tmp_path / "build.log").read_text().splitlines() if "ERROR" in line]
    assert all("CUDA driver" in line for line in faults), faults
    assert said["pool_copy_bytes"] is None or not faults
