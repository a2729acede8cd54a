"""The pipeline over a synthetic DAG: what runs, what stays cached, what a gate stops, what explain says."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.synthetic import Counter, content_hashes, recipe, stages
from trtforge.ground.errors import ForgeError, GateFailed
from trtforge.pipeline.explain import explain
from trtforge.pipeline.keys import describe_changes
from trtforge.pipeline.observer import Observer
from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import StageContext
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.runs import load_record
from trtforge.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / ".trtforge", durable=False)


def statuses(result: Any) -> dict[str, str]:
    return {outcome.stage: outcome.status for outcome in result.outcomes}


def test_everything_runs_once_then_nothing(store: Store, tmp_path: Path) -> None:
    pipeline = Pipeline(stages(), store)
    first = pipeline.run(recipe())
    assert set(statuses(first).values()) == {"ran"}
    assert first.link == tmp_path / "bundles" / "synthetic"
    assert verify_directory(first.link).ok
    assert first.link.resolve() == first.bundle
    second = pipeline.run(recipe())
    assert set(statuses(second).values()) == {"cached"}
    assert second.bundle == first.bundle
    assert json.loads(json.dumps(second.to_json()))["stages"][0]["status"] == "cached"
    assert first.log is not None
    assert "quantize: ran" in first.log.read_text()


def test_only_what_a_change_reaches_runs(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    pipeline.run(recipe(1))
    result = pipeline.run(recipe(2))
    assert statuses(result) == {"intake": "cached", **dict.fromkeys(["quantize", "evaluate", "bench", "bundle"], "ran")}
    outcome = result.outcomes[1]
    assert outcome.reasons == ("section.seed: 1 → 2",)


def test_same_content_upstream_keeps_downstream_cached(store: Store) -> None:
    changed = stages()
    pipeline = Pipeline(changed, store)
    pipeline.run(recipe())
    changed[0].code_version = "2"  # other key, same bytes
    assert statuses(pipeline.run(recipe())) == {
        "intake": "ran",
        **dict.fromkeys(["quantize", "evaluate", "bench", "bundle"], "cached"),
    }


def test_until_force_and_only_needed(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    assert list(statuses(pipeline.run(recipe(), "bench", only_needed=True))) == ["intake", "quantize", "bench"]
    result = pipeline.run(recipe(), until="evaluate", force=["quantize"])
    assert statuses(result) == {"intake": "cached", "quantize": "ran", "evaluate": "ran"}
    for kwargs in ({"until": "quantise"}, {"force": ["quantise"]}):
        with pytest.raises(ForgeError) as caught:
            pipeline.run(recipe(), **kwargs)
        assert caught.value.code == "TF-STO-004"
        assert "quantize" in caught.value.remedies[0]


def test_forced_measurement_refreshes_the_bundle_under_the_same_identity(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    first = pipeline.run(recipe())
    times = (first.artifact("bundle").path / "bench-times.json").read_text()
    again = pipeline.run(recipe(), force=["bench"])
    assert statuses(again)["bundle"] == "ran"
    assert again.outcomes[-1].reasons == ("an input was measured anew",)
    assert again.artifact("bundle").key == first.artifact("bundle").key
    assert again.artifact("bundle").manifest["content_hash"] == first.artifact("bundle").manifest["content_hash"]
    assert (again.artifact("bundle").path / "bench-times.json").read_text() != times
    assert set(statuses(pipeline.run(recipe())).values()) == {"cached"}


def test_missed_gate_keeps_the_artifact_and_stops(store: Store, tmp_path: Path) -> None:
    failing = stages()
    failing[2].gate = 0.08
    pipeline = Pipeline(failing, store)
    for status in ("ran", "cached"):
        with pytest.raises(GateFailed) as caught:
            pipeline.run(recipe())
        assert caught.value.code == "TF-STO-009"
        assert caught.value.exit_code == 1
        assert caught.value.numbers == {"increase": {"measured": 0.08, "limit": 0.05}}
        assert pipeline.last_result is not None
        assert list(statuses(pipeline.last_result)) == ["intake", "quantize", "evaluate"]
        record = load_record(store, "synthetic")
        assert record is not None
        assert record.status == "gate failed"
        assert record.stages["evaluate"].status == status
    kept = store.load(next((store.root / "artifacts" / "evaluate").iterdir()))
    assert kept.manifest["gates_passed"] is False
    assert sorted(content_hashes(store)) == ["evaluate", "intake", "quantize"]
    assert not (tmp_path / "bundles").exists()
    row = explain(pipeline, recipe())[2]
    assert (row.status, row.reasons) == ("gate failed", ("8% over 5%",))


def test_damaged_artifact_is_quarantined_and_built_again(store: Store) -> None:
    messages: list[str] = []

    class Recorder(Observer):
        def message(self, text: str) -> None:
            messages.append(text)

    pipeline = Pipeline(stages(), store)
    first = pipeline.run(recipe())
    victim = first.artifact("quantize").path / "data" / "part1.bin"
    original = victim.read_bytes()
    victim.write_bytes(original[:-1])
    result = pipeline.run(recipe(), observer=Recorder())
    assert statuses(result) == {"intake": "cached", **dict.fromkeys(["quantize", "evaluate", "bench", "bundle"], "ran")}
    assert "damaged" in messages[0]
    assert list((store.root / "quarantine").iterdir())
    victim.write_bytes(bytes([original[0] ^ 1]) + original[1:])
    os.utime(victim, ns=(1, 1))
    assert set(statuses(pipeline.run(recipe())).values()) == {"cached"}, "the cheap check looks at sizes and times"
    assert statuses(pipeline.run(recipe(), full_check=True))["quantize"] == "ran"
    assert victim.read_bytes() == original


def test_a_failed_stage_leaves_nothing_but_scratch(store: Store) -> None:
    class Broken(Counter):
        def run(self, context: StageContext) -> StageResult:
            super().run(context)
            raise ForgeError("TF-TST-001", "no")

    with pytest.raises(ForgeError, match="TF-TST-001"):
        Pipeline([Broken("one")], store).run(recipe())
    assert not list((store.root / "tmp").iterdir())
    assert store.artifacts() == []
    assert len(list((store.root / "scratch").glob("one/*/part*"))) == 3
    assert statuses(Pipeline([Counter("one")], store).run(recipe())) == {"one": "ran"}
    assert not list((store.root / "scratch").glob("one/*"))


def test_a_stage_may_not_come_before_its_inputs(store: Store) -> None:
    with pytest.raises(ValueError, match="before its inputs"):
        Pipeline([Counter("b", ("a",)), Counter("a")], store)
    with pytest.raises(ValueError, match="twice"):
        Pipeline([Counter("a"), Counter("a")], store)


def test_explain_follows_a_change(store: Store) -> None:
    changed = stages()
    pipeline = Pipeline(changed, store)
    assert [row.status for row in explain(pipeline, recipe())] == ["would run", *["may run"] * 4]
    pipeline.run(recipe(16))
    assert {row.status for row in explain(pipeline, recipe(16))} == {"cached"}
    rows = explain(pipeline, recipe(32))
    assert [row.status for row in rows] == ["cached", *["would run"] * 4]
    assert rows[1].reasons == ("section.seed: 16 → 32",)
    assert "input quantize would be built first" in rows[2].reasons
    changed[0].code_version = "2"
    rows = explain(pipeline, recipe(16))
    assert [row.status for row in rows] == ["would run", *["may run"] * 4]
    assert rows[0].reasons == ("the stage's code 1 → 2",)
    assert rows[1].to_json()["reasons"] == ["input intake would be built first"]


def test_explain_says_when_an_artifact_was_removed_or_damaged(store: Store) -> None:
    import shutil

    pipeline = Pipeline(stages(), store)
    result = pipeline.run(recipe())
    (result.artifact("bundle").path / "COMPLETE").unlink()
    assert "damaged" in explain(pipeline, recipe())[-1].reasons[0]
    shutil.rmtree(result.artifact("bundle").path)
    assert explain(pipeline, recipe())[-1].reasons == ("the artifact of the last run was removed",)


def test_describe_changes_names_every_ingredient() -> None:
    old = {
        "code_version": "1",
        "section": {"calibration": {"samples": 16}, "gone": 1},
        "inputs": {"quantize": "a"},
        "tools": {"nvidia-modelopt": "0.46.0"},
        "host": {"isa": ["avx2"]},
    }
    new = {
        "code_version": "2",
        "section": {"calibration": {"samples": 32}},
        "inputs": {"quantize": "b"},
        "tools": {"nvidia-modelopt": "0.47.0"},
        "host": {"isa": ["avx512f"]},
    }
    assert describe_changes(old, new) == [
        "the stage's code 1 → 2",
        "section.calibration.samples: 16 → 32",
        "section.gone: 1 → (absent)",
        "input quantize changed",
        "tool nvidia-modelopt 0.46.0 → 0.47.0",
        "host.isa: ['avx2'] → ['avx512f']",
    ]


def test_partial_run_keeps_the_record_of_later_stages(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    pipeline.run(recipe(1))
    pipeline.run(recipe(2), until="quantize")
    record = load_record(store, "synthetic")
    assert record is not None
    assert set(record.stages) == {stage.name for stage in stages()}


def test_log_takes_logging_and_prints(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(Counter):
        def run(self, context: StageContext) -> StageResult:
            print("printed by a library")
            print("10%\r50%\r100%")
            logging.getLogger("library").warning("warned")
            context.progress.note("noted")
            return super().run(context)

    result = Pipeline([Loud("one")], store).run(recipe(), capture_output=True)
    assert result.log is not None
    text = result.log.read_text()
    for expected in ("| printed by a library", "| 100%", "WARNING library: warned", "one: noted"):
        assert expected in text
    assert "50%" not in text
    assert "printed" not in capsys.readouterr().out


def test_bundle_link_does_not_replace_what_is_not_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bundles" / "synthetic").mkdir(parents=True)
    with pytest.raises(ForgeError) as caught:
        Pipeline(stages(), store).run(recipe())
    assert caught.value.code == "TF-STO-011"


def test_a_stage_that_a_recipe_does_not_ask_for_is_not_there(store: Store, tmp_path: Path) -> None:
    class OnlyWithSpeculation(Counter):
        def asked_for(self, recipe: Recipe) -> bool:
            return recipe.speculation.method != "none"

    def with_one_more() -> Pipeline:
        listed = stages()
        bundle = listed.pop()
        bundle.needs = (*bundle.needs, "extra")
        return Pipeline([*listed, OnlyWithSpeculation("extra", ("quantize",)), bundle], store)

    before = Pipeline(stages(), store).run(recipe())
    pipeline = with_one_more()
    # the bundle's key is what it was: nothing runs
    assert statuses(pipeline.run(recipe())) == dict.fromkeys(statuses(before), "cached")
    assert [row.stage for row in explain(pipeline, recipe())] == list(statuses(before))
    with pytest.raises(ForgeError) as caught:
        pipeline.run(recipe(), until="extra")
    assert caught.value.code == "TF-STO-016" and "speculation.method" in caught.value.remedies[0]

    asked = recipe_from_mapping(
        {"name": "synthetic", "model": {"source": "somewhere"}, "speculation": {"method": "ngram", "max_draft_len": 3}}
    )
    after = pipeline.run(asked)
    assert statuses(after) == {**dict.fromkeys(statuses(before), "cached"), "extra": "ran", "bundle": "ran"}
    assert "extra" in after.artifact("bundle").manifest["inputs"]
    assert list(statuses(pipeline.run(asked, "extra", only_needed=True))) == ["intake", "quantize", "extra"]
