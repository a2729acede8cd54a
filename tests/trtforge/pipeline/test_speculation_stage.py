"""The stage ``speculation``: when it is there, what decides its key, and what it reads of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtforge.drafting.record import DynamicTree, NGramSizes, SpeculationRecord
from trtforge.ground.errors import ForgeError
from trtforge.pipeline.catalogue import default_stages
from trtforge.pipeline.stages.speculation import SpeculationStage, levels, record_of
from trtforge.pipeline.stages.targets import left_out
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe


def recipe(method: str = "ngram", target: str = "torch", **evals: Any) -> Recipe:
    drafts = {"method": method, **({} if method == "none" else {"max_draft_len": 3})}
    data = {
        "name": "r",
        "model": {"source": "somewhere"},
        "build": {"target": target},
        "speculation": drafts,
        "evals": {"speculation": evals},
    }
    return recipe_from_mapping(data).recipe


def test_only_recipes_that_speculate_have_the_stage() -> None:
    [stage] = [stage for stage in default_stages() if stage.name == "speculation"]
    assert stage.asked_for(recipe()) and not stage.asked_for(recipe("none"))
    others = [stage for stage in default_stages() if stage.name != "speculation"]
    assert all(stage.asked_for(recipe("none")) for stage in others)


def test_targets_without_a_runner_name_the_gates_that_have_no_verdict() -> None:
    asked = recipe(target="trtllm-llmapi", gate={"min_accepted_length": 2})
    found = left_out(asked, "speculation")
    assert found is not None and found.gates == (
        "speculation_greedy",
        "speculation_distribution",
        "speculation_accepted_length",
        "speculation_speedup",
    )
    by_default = left_out(recipe(target="trtllm-llmapi"), "speculation")
    assert by_default is not None and "speculation_accepted_length" not in by_default.gates
    none = left_out(recipe(target="trtllm-llmapi", gate=None), "speculation")
    assert none is not None and none.gates == ()
    assert left_out(recipe(), "speculation") is None


def test_levels_follow_the_bench_unless_they_are_given(tmp_path: Path) -> None:
    assert levels(recipe()) == [1, 4, 16]
    assert levels(recipe(concurrency=[8, 2])) == [2, 8]
    before = SpeculationStage().section(recipe(), tmp_path)
    assert before["concurrency"] == [1, 4, 16] and before["gate"]["max_differing"] == 0
    assert SpeculationStage().section(recipe(concurrency=[1, 4, 16]), tmp_path) == before
    assert SpeculationStage().section(recipe(draws=64), tmp_path) != before


def test_the_prompts_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SpeculationStage().section(recipe(), tmp_path)
    monkeypatch.setattr("evals.speculation.prompts.held_out", lambda: {"chat": ("another",)})
    assert SpeculationStage().section(recipe(), tmp_path) != before


def test_the_engine_says_what_it_drafts(tmp_path: Path) -> None:
    for record in (
        SpeculationRecord("ngram", 4, ngram=NGramSizes(4, 1)),
        SpeculationRecord("eagle3", 3, DynamicTree(3, 2, 5), taps=(1, 2, 3), draft="draft"),
    ):
        assert record_of({"speculation": record.to_json()}, tmp_path) == record


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    for engine, words in (({"speculation": {"version": 99}}, "99"), ({}, "without speculation")):
        with pytest.raises(ForgeError) as caught:
            record_of(engine, tmp_path)
        assert caught.value.code == "TF-STO-015" and words in str(caught.value)


@pytest.mark.parametrize(
    "evals",
    [
        {"prompts": 0},
        {"prompts": 33},
        {"max_tokens": 3},
        {"draws": 31},
        {"temperatures": [-0.1]},
        {"concurrency": []},
        {"concurrency": [0]},
        {"gate": {"alpha": 0}},
        {"gate": {"alpha": 1}},
        {"gate": {"max_differing": -1}},
        {"gate": {"min_accepted_length": 0.5}},
        {"gate": {"min_speedup": 0}},
        {"prompt": 3},
    ],
)
def test_sizes_that_make_no_sense_are_refused(evals: dict[str, Any]) -> None:
    with pytest.raises(ForgeError):
        recipe(**evals)
