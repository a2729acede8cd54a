"""parity judges from what it measured: another gate runs no engine, anything else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.engine_answers import EngineAnswers, Question
from evals.generation import Answer, answers_to_json
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages import parity
from trtforge.pipeline.stages.parity import ANSWERS_FILE, MEASURED_FILE, PARITY_FILE, ParityStage
from trtforge.recipe.load import recipe_from_mapping
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.store import Store

ANSWER = Answer("p", (1, 2, 3), "one two three", 1.0, ())
FIGURES = {
    "agreement": {"value": 0.995, "low": 0.985, "high": 1.0, "confidence": 0.95},
    "positions": 512,
    "mean_kl": 0.001,
    "floor_kl": 0.001,
    "weights": {"changed": 0, "weights": 10, "largest": 0.0, "linears": {}},
}


def recipe(**evals: Any) -> Any:
    return recipe_from_mapping({"name": "r", "model": {"source": "m"}, "evals": evals}).recipe


def inputs(folder: Path) -> dict[str, Artifact]:
    (folder / "baseline").mkdir(exist_ok=True)
    (folder / "baseline/generation.json").write_text(json.dumps(answers_to_json([ANSWER])))
    return {
        name: Artifact(name, "k", folder / name, {"content_hash": f"{name}-hash", "files": []})
        for name in ("baseline", "quantize", "build")
    }


def measured(folder: Path) -> Artifact:
    """What a run with the default gates leaves."""
    stage, store = ParityStage(), Store(folder / "store", durable=False)
    out = store.begin("parity", "b" * 64)
    (out / MEASURED_FILE).write_text(json.dumps(FIGURES))
    (out / PARITY_FILE).write_text("{}")
    found = EngineAnswers((Question("p", (7,), True),), (ANSWER,), 3, 3, ())
    (out / ANSWERS_FILE).write_text(json.dumps(found.to_record()))
    ingredients: dict[str, Any] = {
        "section": stage.section(recipe(), folder),
        "inputs": {name: artifact.manifest["content_hash"] for name, artifact in inputs(folder).items()},
        "code_version": stage.code_version,
        "tools": {},
        "host": {},
    }
    return store.publish(
        out, stage="parity", key="b" * 64, ingredients=ingredients, inputs={}, result=StageResult(), seconds=1.0
    )


def run(folder: Path, asked: Any) -> StageResult:
    stage = ParityStage()
    out = folder / "out"
    out.mkdir()
    section = stage.section(asked, folder)
    before = measured(folder)
    context = StageContext(asked, folder, section, inputs(folder), out, folder / "s", SilentProgress(), (before,))
    return stage.run(context)


def no_engine(*_: Any) -> None:
    raise AssertionError("an engine was loaded")


@pytest.mark.parametrize(("limit", "passed"), [(0.98, True), (0.99, False)])
def test_another_gate_runs_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, passed: bool
) -> None:
    monkeypatch.setattr(parity, "_engine", no_engine)
    result = run(tmp_path, recipe(engine_parity={"gate": {"min_top1_agreement": limit}}, generation={"gate": None}))
    gates = {gate.name: gate.passed for gate in result.gates}
    assert gates == {"top1_agreement": passed, "engine_kl": True, "engine_answers": True, "deployed_weights": True}
    assert result.summary["answers"]["agreed"] == 3
    assert json.loads((tmp_path / "out" / PARITY_FILE).read_text()) == result.summary


@pytest.mark.parametrize("evals", [{"engine_parity": {"prompts": 8}}, {"suite": {"samples": 2}}])
def test_other_measurements_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evals: dict[str, Any]) -> None:
    monkeypatch.setattr(parity, "_engine", no_engine)
    with pytest.raises(AssertionError, match="an engine was loaded"):
        run(tmp_path, recipe(**evals))
