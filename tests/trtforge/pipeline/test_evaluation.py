"""baseline, evaluate and their samples: measured once, judged as often as asked, gone on with after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import write_tiny_llama
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages import subject
from trtforge.pipeline.stages.baseline import BaselineStage
from trtforge.pipeline.stages.evaluate import EvaluateStage
from trtforge.recipe.load import recipe_from_mapping
from trtforge.store.artifact import Artifact, StageResult

RECIPE: dict[str, Any] = {
    "name": "r",
    "model": {"source": "m"},
    "evals": {
        "perplexity": {"tokens": 200, "window": 64, "stride": 32, "noise_tokens": 96, "gate": {"max_increase": "400%"}},
        "generation": {"prompts": 2, "max_tokens": 4},
        "suite": {"samples": 2, "gate": {"max_drop": "50%"}},
        "custom": [{"name": "own", "path": "file:own.jsonl", "max_tokens": 3, "gate": {"max_drop": "100%"}}],
        "long_context": {"lengths": [256, 300], "samples": 1, "depths": [0.5]},
    },
}


class Runs:
    """The two stages over tiny checkpoints, each with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "own.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
        for name, seed in (("intake", 0), ("quantize", 5)):
            write_tiny_llama(folder / name, seed=seed)
        self.count = 0

    def artifact(self, stage: str, path: Path, **more: Any) -> Artifact:
        summary = more.pop("summary", {"emulated": []})
        return Artifact(stage, "k", path, {"content_hash": f"{stage}-hash", "summary": summary, "files": [], **more})

    def run(
        self, stage: Stage, recipe: dict[str, Any], inputs: dict[str, Artifact], earlier: tuple[Artifact, ...] = ()
    ) -> tuple[Artifact, StageResult]:
        self.count += 1
        out, scratch = self.folder / f"out{self.count}", self.folder / f"scratch{self.count}"
        out.mkdir()
        loaded = recipe_from_mapping(recipe, self.folder).recipe
        section = stage.section(loaded, self.folder)
        context = StageContext(loaded, self.folder, section, inputs, out, scratch, SilentProgress(), earlier)
        result = stage.run(context)
        made_of = {name: {"content_hash": artifact.manifest["content_hash"]} for name, artifact in inputs.items()}
        return self.artifact(stage.name, out, summary=result.summary, inputs=made_of), result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("evaluation"))


@pytest.fixture(scope="module")
def baseline(runs: Runs) -> Artifact:
    return runs.run(BaselineStage(), RECIPE, {"intake": runs.artifact("intake", runs.folder / "intake")})[0]


@pytest.fixture(scope="module")
def evaluated(runs: Runs, baseline: Artifact) -> tuple[Artifact, StageResult]:
    quantized = runs.artifact("quantize", runs.folder / "quantize")
    return runs.run(EvaluateStage(), RECIPE, {"baseline": baseline, "quantize": quantized})


def changed(**evals: Any) -> dict[str, Any]:
    return {**RECIPE, "evals": {**RECIPE["evals"], **evals}}


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(subject.LazyReference, "model", property(refuse))


def test_every_figure_is_there_with_its_interval(evaluated: tuple[Artifact, StageResult]) -> None:
    _, result = evaluated
    figures = result.summary
    assert figures["divergence"]["kl"]["value"] > 0 and 0 <= figures["divergence"]["top1"]["value"] < 1
    assert figures["noise"]["tokens"] == 95
    assert figures["noise"]["kl"]["value"] < figures["divergence"]["kl"]["value"], "another model is no rounding"
    assert figures["suite"]["overall"]["items"] == 8 and set(figures["suite"]["tasks"]) == {
        "recall", "arithmetic", "pattern", "format"}  # fmt: skip
    assert figures["custom"]["own"]["items"] == 1
    assert [row["length"] for row in figures["long_context"]["tail"]] == [256, 300]
    assert len(figures["generation"]["common_prefix_tokens"]) == 2 and figures["generation"]["mean_edit_share"] > 0
    gates = {gate.name: gate for gate in result.gates}
    assert set(gates) == {"perplexity_increase", "generation_sanity", "task_suite", "custom:own"}
    one = gates["perplexity_increase"]
    assert one.baseline and one.candidate and one.low < one.measured < one.high == one.bound
    assert "baseline against itself" in one.detail and "limit 4" in one.detail


def test_another_gate_loads_no_model(
    runs: Runs, baseline: Artifact, evaluated: tuple[Artifact, StageResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_model(monkeypatch)
    before, first = evaluated
    quantized = runs.artifact("quantize", runs.folder / "quantize")
    strict = changed(
        perplexity={**RECIPE["evals"]["perplexity"], "gate": {"max_increase": "1%", "max_kl": 1e-9}},
        suite={"samples": 2, "gate": None},
    )
    _, result = runs.run(EvaluateStage(), strict, {"baseline": baseline, "quantize": quantized}, (before,))
    gates = {gate.name: gate.passed for gate in result.gates}
    assert gates == {"perplexity_increase": False, "baseline_kl": False, "generation_sanity": False, "custom:own": True}
    assert result.summary == first.summary


def test_one_task_more_measures_that_task_alone(
    runs: Runs, baseline: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    written = subject.LazyReference._written

    def counting(self: Any, items: Any, tokenizer: Any) -> list[str]:
        asked.extend(item.task for item in items)
        return written(self, items, tokenizer)

    monkeypatch.setattr(subject.LazyReference, "_written", counting)
    more = changed(suite={"samples": 3})
    runs.run(BaselineStage(), more, {"intake": runs.artifact("intake", runs.folder / "intake")}, (baseline,))
    assert sorted(asked) == ["arithmetic", "format", "pattern", "recall"]


def test_samples_of_another_checkpoint_are_not_taken_over(
    runs: Runs, baseline: Artifact, evaluated: tuple[Artifact, StageResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_model(monkeypatch)
    other = Artifact("quantize", "k", runs.folder / "quantize", {"content_hash": "other", "summary": {}, "files": []})
    with pytest.raises(AssertionError, match="a model was loaded"):
        runs.run(EvaluateStage(), RECIPE, {"baseline": baseline, "quantize": other}, (evaluated[0],))


def test_every_layer_is_held_against_the_baselines(
    runs: Runs, baseline: Artifact, evaluated: tuple[Artifact, StageResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = {name: runs.artifact(name, runs.folder / name) for name in ("intake", "quantize")}
    inputs = {"baseline": baseline, **checkpoints}
    made, result = runs.run(EvaluateStage(), changed(layers=True), inputs, (evaluated[0],))
    found = result.summary["layers"]
    assert [row["name"] for row in found["layers"]] == ["model.layers.0", "model.layers.1"]
    assert {row["name"].rpartition(".")[2] for row in found["parts"]} == {"self_attn", "mlp"}
    assert all(-1 <= row["cosine"] < 0.99 for row in found["layers"]), "these are two unrelated models"
    worst = [next(r["snr_db"] for r in [*found["layers"], *found["parts"]] if r["name"] == n) for n in found["worst"]]
    assert worst == sorted(worst) and len(worst) == 6
    no_model(monkeypatch)
    again = runs.run(EvaluateStage(), changed(layers=True), inputs, (made,))[1]
    assert again.summary["layers"] == found


def files(artifact: Artifact) -> dict[str, bytes]:
    return {str(p.relative_to(artifact.path)): p.read_bytes() for p in artifact.path.rglob("*") if p.is_file()}


def test_layer_by_layer_every_sample_is_the_same(
    runs: Runs, baseline: Artifact, evaluated: tuple[Artifact, StageResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, noise, answers, tasks, needles and layer errors, to the bit; items are written together."""
    import quantize.reference

    def whole(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded whole")

    monkeypatch.setattr(quantize.reference, "load_reference_model", whole)
    by_layer = {**RECIPE, "model": {"source": "m", "loading": "by_layer"}}
    intake, quantized = (runs.artifact(name, runs.folder / name) for name in ("intake", "quantize"))
    ours = runs.run(BaselineStage(), by_layer, {"intake": intake})[0]
    assert files(ours) == files(baseline) and BaselineStage().section(
        recipe_from_mapping(by_layer, runs.folder).recipe, runs.folder
    ) == BaselineStage().section(recipe_from_mapping(RECIPE, runs.folder).recipe, runs.folder)
    inputs = {"intake": intake, "baseline": baseline, "quantize": quantized}
    candidate, result = runs.run(EvaluateStage(), by_layer, inputs)
    assert files(candidate) == files(evaluated[0]) and result.summary == evaluated[1].summary
