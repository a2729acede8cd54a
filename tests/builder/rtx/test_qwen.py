"""Norms of heads, biases, and a window in some layers only, through the real compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.targets import build_engine
from tests.builder.rtx.models import compiles, native_graph, rtx_build

pytestmark = compiles
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"architecture": "Qwen2ForCausalLM", "sliding_window": 16, "max_window_layers": 1},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "tie": False},
}


@pytest.mark.parametrize(("model", "fmt", "target"), [("qwen2", "int4_awq", "sm_86"), ("qwen3", "fp8", "sm_89")])
def test_qwen_compiles(tmp_path: Path, model: str, fmt: str, target: str) -> None:
    graph = native_graph(tmp_path / "g", fmt, **MODELS[model])
    engine = build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build(target))
    assert (tmp_path / "e" / f"{target}.rtx").stat().st_size > 0
    assert engine["quantized_linears"] == 14
    wanted = (16, [0]) if model == "qwen2" else (0, [])
    assert (engine["sliding_window"], engine["full_attention_layers"]) == wanted
