"""Drafters of a recipe: what a release of TensorRT-LLM loads of them, with what would work instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.preflight import report
from tests.trtforge.drafting.checkpoints import Spec, write
from tests.trtforge.drafting.test_traps import write_target, write_tokenizer
from tests.trtforge.preflight import folders
from tests.trtforge.preflight.settings import API, merged, speculation
from trtforge.drafting.conversion import convert
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


def drafted(folder: Path, code: str, **tokenizer: Any) -> list[Finding]:
    """The findings for a draft model whose tokenizer has the target's table and ``tokenizer`` beside it."""
    for name, more in (("model", {}), ("draft", tokenizer)):
        folders.write_model(folder / name, config={"vocab_size": 49_152, "hidden_size": 576})
        write_tokenizer(folder / name, 3, **more)
    settings = merged(API, {"model": {"source": "model"}}, speculation(method="draft_target", draft="draft"))
    return [item for item in report(settings, directory=folder).findings if item.code == code]


def test_a_draft_with_the_same_table_and_another_way_to_cut_is_of_another_target(tmp_path: Path) -> None:
    assert drafted(tmp_path / "same", "TF-K12-006") == []
    (finding,) = drafted(tmp_path / "lower", "TF-K12-006", normalizer={"type": "Lowercase"})
    assert "has other token ids" in finding.message


@pytest.mark.parametrize(
    ("asked", "depth"),
    [
        ({"max_draft_len": 4}, 4),
        ({"max_draft_len": 4, "choices": [[0], [1], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}, 4),
        ({"dynamic_tree": {"depth": 5, "top_k": 2, "total": 12}}, 5),
    ],
)
def test_every_shape_of_a_draft_is_as_deep_as_its_head_drafts(
    asked: dict[str, Any], depth: int, tmp_path: Path
) -> None:
    settings = speculation(method="eagle3", draft="draft", **asked)
    for most in (depth - 1, depth):
        place = tmp_path / str(most)
        write(place / "draft", Spec("specforge"), config={"num_lookahead_tokens": most})
        found = [item for item in report(settings, directory=place, model=None).findings if item.code == "TF-K12-040"]
        assert [item.numbers for item in found] == ([{"depth": depth, "head": most}] if most < depth else [])


def test_a_head_of_another_target_by_its_record_is_refused(tmp_path: Path) -> None:
    target = write_target(tmp_path / "model", words=3)
    convert(write(tmp_path / "first", Spec("speculators")), "modelopt", tmp_path / "draft", target=target)
    settings = merged({"model": {"source": "model"}}, speculation(method="eagle3", draft="draft", max_draft_len=3))

    def refusals() -> list[Any]:
        found = report(settings, directory=tmp_path, model=None).findings
        return [item.numbers["refusal"] for item in found if item.code == "TF-K12-027"]

    assert refusals() == []
    write_tokenizer(target, 9)
    assert refusals() == ["TF-DRF-032"]
