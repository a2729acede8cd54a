"""The shipped recipes that speculate, to a bundle whose every gate passed; the tiny recipe with every way of drafting.

Sizes are small: what is proved here is that the stages fit together and that answers stay what they are. One store
serves the shipped recipes, which share everything up to the graph.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.tiny import write_tiny_llama
from tests.support.tiny_recipe import write_tiny_recipe
from tests.trtforge.drafting import checkpoints
from trtforge.ground.errors import GateFailed
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.pipeline.explain import explain
from trtforge.pipeline.result import RunResult
from trtforge.pipeline.stages import smoke
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL = (
    "evals.perplexity={tokens: 256, window: 128, stride: 64, noise_tokens: 128}",
    "evals.generation={prompts: 1, max_tokens: 16}",
    "evals.suite={samples: 1, gate: null}",
    "evals.engine_parity={prompts: 4, tokens: 128, gate: {min_top1_agreement: 99%}}",
    # the smoke test has twice as many clients
    "build.limits.max_batch_size=4",
    "bench.concurrency=[2]",
    "bench.requests_per_level=4",
    "bench.max_tokens=16",
    "evals.speculation.prompts=1",
    "evals.speculation.max_tokens=24",
    "evals.speculation.draws=32",
    "evals.speculation.repeats=1",
    "evals.speculation.temperatures=[0,1]",
    "evals.speculation.concurrency=[2]",
    # a few tokens beside other work: a timing that says little, and must not fail for that
    "evals.speculation.gate.min_speedup=0.6",
)
GATES = ("speculation_greedy", "speculation_distribution", "speculation_speedup")


def gates_of(result: RunResult, stage: str) -> dict[str, bool]:
    return {gate["name"]: gate["passed"] for gate in result.artifact(stage).manifest["gates"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("speculation") / "store", durable=False)


def shipped() -> list[str]:
    """Recipes of this folder that speculate on the torch target."""
    loaded = [load_recipe(path).recipe for path in sorted(CONFIGS.glob("*.yaml"))]
    return [one.name for one in loaded if one.speculation.method != "none" and one.build.target == "torch"]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_runs_to_a_bundle_that_passed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(smoke, "PROMPTS", 2)
    monkeypatch.setattr(smoke, "MAX_TOKENS", 12)
    loaded = load_recipe(CONFIGS / f"{name}.yaml", SMALL)
    result = default_pipeline(store).run(loaded, output=tmp_path / "bundles", capture_output=True)
    assert result.verdict == "passed" and result.bundle is not None
    assert gates_of(result, "speculation") == dict.fromkeys(GATES, True)
    assert verify_bundle(result.bundle).ok
    quality = json.loads((result.bundle / "evidence" / "speculation.json").read_text())
    assert quality["greedy"]["differences"] == [], "a row of logits is the same in any batch here"
    assert all(fit["same"] == fit["draws"] == 32 for fit in quality["distribution"])
    rows = {(row["kind"], row["temperature"]): row for row in quality["acceptance"]}
    assert {kind for kind, _ in rows} == {"chat", "code", "copy", "open", "all"}
    copied = rows["copy", 0.0]["accepted_length"]["value"]
    assert copied > 1.2, "text that stands in the prompt is drafted"
    speed = json.loads((result.bundle / "evidence" / "speculation-speed.json").read_text())
    assert {(cell["kind"], cell["concurrency"]) for cell in speed["cells"]} == {
        (kind, 2) for kind in ("chat", "code", "copy", "open")
    }
    report = (result.bundle / "report.md").read_text()
    assert "## Speculation" in report and "Accepted length, the bonus token included" in report


TINY = (
    "evals.speculation.prompts=2",
    "evals.speculation.max_tokens=16",
    "evals.speculation.draws=48",
    "evals.speculation.repeats=1",
    # a model of a few layers steps in a millisecond: what a draft costs beside it is no measure of anything
    "evals.speculation.gate.min_speedup=null",
    "speculation.max_draft_len=4",
)
NGRAM = ("speculation.method=ngram", "speculation.ngram={max_matching_ngram_size: 4, min_matching_ngram_size: 1}")
EAGLE = ("speculation.method=eagle3", "speculation.draft=head")
WAYS = {
    "ngram": NGRAM,
    "eagle3": EAGLE,
    "eagle3 with n-grams": (*EAGLE, "speculation.ngram_on_top=true"),
    "static tree": (*EAGLE, "speculation.max_draft_len=2", "speculation.choices=[[0],[1],[0,0],[0,1],[1,0]]"),
    "dynamic tree": (*EAGLE, "speculation.max_draft_len=3", "speculation.dynamic_tree={depth: 3, top_k: 3, total: 7}"),
    "draft model": ("speculation.method=draft_target", "speculation.draft=small"),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe over a tiny model, with a head and a draft model (of random weights both) beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    with patch.multiple(checkpoints, WIDTH=64, SIZE=64, VOCAB=512, DRAFT_VOCAB=128):
        spec = checkpoints.Spec("specforge", taps=(0, 1, 2), target_width=64)
        checkpoints.write(folder / "head", spec)
    write_tiny_llama(folder / "small", layers=1, seed=0)
    return write_tiny_recipe(folder, format="none", kv_cache="none", layers=4)


def run_tiny(recipe: Path, *more: str, **options: Any) -> RunResult:
    pipeline = default_pipeline(Store(recipe.parent / ".trtforge", durable=False))
    return pipeline.run(
        load_recipe(recipe, [*TINY, *more]), "speculation", only_needed=True, capture_output=True, **options
    )


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_drafting_changes_no_answer(tiny: Path, way: str) -> None:
    result = run_tiny(tiny, *WAYS[way])
    assert gates_of(result, "speculation") == dict.fromkeys(GATES[:2], True)
    figures = result.artifact("speculation").summary
    assert figures["greedy"]["differences"] == [] and figures["greedy"]["drafted"] > 0
    assert all(fit["same"] == fit["draws"] for fit in figures["distribution"])
    assert sum(fit["drafted"] for fit in figures["distribution"]) > 0
    timed = result.artifact("speculation").manifest["measurements"]["greedy"]
    assert timed["differences"] == []


def test_figures_that_no_clock_decides_repeat(tiny: Path) -> None:
    first = run_tiny(tiny, *NGRAM)
    again = run_tiny(tiny, *NGRAM, force=["speculation"])
    assert again.outcomes[-1].status == "ran"
    one, other = first.artifact("speculation").manifest, again.artifact("speculation").manifest
    assert one["content_hash"] == other["content_hash"]
    assert set(one["measurements"]) == {"machine", "speedup", "cells", "greedy", "policy"}
    assert run_tiny(tiny, *NGRAM).outcomes[-1].status == "cached"


def test_a_missed_gate_ends_the_run_with_its_remedies(tiny: Path) -> None:
    with pytest.raises(GateFailed) as caught:
        run_tiny(tiny, *NGRAM, "evals.speculation.gate.min_accepted_length=5.5")
    assert "speculation_accepted_length" in str(caught.value)
    assert any("min_accepted_length" in way for way in caught.value.remedies)


def test_explain_says_what_a_change_of_sizes_repeats(tiny: Path) -> None:
    run_tiny(tiny, *NGRAM)
    pipeline = default_pipeline(Store(tiny.parent / ".trtforge", durable=False))
    rows = {
        row.stage: row for row in explain(pipeline, load_recipe(tiny, [*TINY, *NGRAM, "evals.speculation.draws=64"]))
    }
    assert rows["speculation"].status == "would run" and rows["parity"].status == "cached"
    assert "section.draws: 48 → 64" in rows["speculation"].reasons
    without = {row.stage for row in explain(pipeline, load_recipe(tiny))}
    assert "speculation" not in without and "bundle" in without
