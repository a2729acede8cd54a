"""Drafters of a recipe: what a release of TensorRT-LLM loads of them, with what would work instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.preflight import report
from tests.trtforge.drafting.checkpoints import Spec, write
from tests.trtforge.preflight.settings import API, merged, speculation
from trtforge.preflight.engine import Finding

EAGLE = merged(API, speculation(method="eagle3", draft="draft", max_draft_len=3))


def found(code: str, folder: Path, stack: str | None = None, spec: Spec | None = None) -> list[Finding]:
    write(folder / "draft", spec or Spec("specforge"))
    settings = merged(EAGLE, {"stack": stack} if stack else {})
    return [item for item in report(settings, directory=folder, model=None).findings if item.code == code]


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        (Spec("speculators", norm_before_residual=True), "TF-DRF-016"),
        (Spec("speculators", qk_norm=True), "TF-DRF-016"),
        (Spec("specforge", own_embedding=True), "TF-DRF-020"),
    ],
)
@pytest.mark.parametrize("stack", ["trtllm-1.3", "trtllm-1.2.1"])
def test_what_no_release_loads_is_refused_without_another_stack(
    spec: Spec, refusal: str, stack: str, tmp_path: Path
) -> None:
    (finding,) = found("TF-K12-035", tmp_path, stack, spec)
    assert finding.numbers["refusal"] == refusal and finding.blocks
    assert not any(way.startswith("stack:") for way in finding.remedies)
    if refusal == "TF-DRF-020":
        assert any("trtforge draft convert" in way and "--allow-loss embed_tokens" in way for way in finding.remedies)


@pytest.mark.parametrize("spec", [Spec("specforge", fc_norm=True), Spec("specforge", norm_output=True)])
def test_what_came_with_a_release_is_refused_before_it(spec: Spec, tmp_path: Path) -> None:
    (finding,) = found("TF-K12-035", tmp_path / "older", "trtllm-1.2.1", spec)
    assert finding.numbers["refusal"] == "TF-DRF-030"
    assert "stack: trtllm-1.3" in finding.remedies
    assert found("TF-K12-035", tmp_path / "newer", "trtllm-1.3", spec) == []


@pytest.mark.parametrize("dialect", ["specforge", "speculators", "modelopt", "tensorrt-llm"])
def test_every_dialect_is_loaded_after_its_conversion(dialect: str, tmp_path: Path) -> None:
    assert found("TF-K12-035", tmp_path, "trtllm-1.2.1", Spec(dialect)) == []
