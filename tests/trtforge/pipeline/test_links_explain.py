"""What a moved link, a failed run and a long list of changes are told as."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.synthetic import recipe, stages
from trtforge.cli.run import shortened
from trtforge.cli.summary import _described
from trtforge.ground.errors import ForgeError
from trtforge.pipeline.explain import explain
from trtforge.pipeline.links import link_bundle, linked_bundle
from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.store.artifact import StageResult
from trtforge.store.runs import record_path
from trtforge.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / ".trtforge", durable=False)


def test_a_moved_link_says_from_where(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    first = pipeline.run(recipe(1))
    assert first.moved_from is None
    second = pipeline.run(recipe(2))
    assert second.moved_from == first.bundle and second.bundle != first.bundle
    assert second.to_json()["moved_from"] == str(first.bundle)
    assert pipeline.run(recipe(2)).moved_from is None, "the link stayed where it was"


def test_a_link_whose_bundle_is_gone_is_described_as_such(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    link_bundle(gone, tmp_path / "out", "x")
    gone.rmdir()
    assert linked_bundle(tmp_path / "out", "x") == gone.resolve()
    assert _described(gone) == f"{gone} (removed)"
    assert linked_bundle(tmp_path / "out", "other") is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "manifest.json").write_text('{"stamps": {"target": "torch"}}')
    assert _described(tmp_path / "b").endswith("b (target torch)")
    (tmp_path / "b" / "manifest.json").write_text("[]")
    assert _described(tmp_path / "b") == str(tmp_path / "b")


def test_explain_after_a_failed_run_says_that_it_failed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stages()

    def fail(context: StageContext) -> StageResult:
        raise ForgeError("TF-TEST-001", "broken on purpose")

    failing = next(stage for stage in made if stage.name == "evaluate")
    monkeypatch.setattr(failing, "run", fail)
    pipeline = Pipeline(made, store)
    assert explain(pipeline, recipe())[0].reasons == ("no run of a recipe of this name is recorded",)
    with pytest.raises(ForgeError, match="broken on purpose"):
        pipeline.run(recipe())
    rows = {row.stage: row for row in explain(pipeline, recipe())}
    assert rows["quantize"].status == "cached"
    for name in ("evaluate", "bundle"):
        assert rows[name].reasons[0].startswith("the last run failed before this stage was finished (log: ")


def test_explain_after_a_kill_says_that_there_was_a_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a SIGKILL inside a stage leaves is the record as it was then."""
    made = stages()
    kept: list[bytes] = []

    def killed(context: StageContext) -> StageResult:
        kept.append(record_path(store, recipe().recipe.name).read_bytes())
        raise KeyboardInterrupt

    failing = next(stage for stage in made if stage.name == "evaluate")
    monkeypatch.setattr(failing, "run", killed)
    pipeline = Pipeline(made, store)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe())
    record_path(store, recipe().recipe.name).write_bytes(kept[0])
    rows = {row.stage: row for row in explain(pipeline, recipe())}
    assert rows["quantize"].status == "cached"
    assert rows["evaluate"].reasons[0].startswith("the last run was killed, or is still running, before this stage")


def test_a_stage_that_the_target_leaves_out_is_neither_run_nor_to_be_run(store: Store) -> None:
    class LeftOut(Stage):
        name = "parity"

        def section(self, recipe: object, recipe_dir: Path) -> dict[str, object]:
            return {"not_run": {"reason": "this machine has no GPU", "gates": ["top1_agreement"]}}

        def run(self, context: StageContext) -> StageResult:
            return StageResult(summary={"not_run": {"reason": "this machine has no GPU", "gates": ["top1_agreement"]}})

    pipeline = Pipeline([LeftOut()], store)
    (row,) = explain(pipeline, recipe())
    assert (row.status, row.reasons) == ("left out", ("this machine has no GPU",))
    assert [outcome.status for outcome in pipeline.run(recipe()).outcomes] == ["left out"]
    assert explain(pipeline, recipe())[0].status == "cached"


def test_a_run_that_was_to_end_earlier_did_not_fail(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    pipeline.run(recipe(), until="quantize")
    (row,) = [row for row in explain(pipeline, recipe()) if row.stage == "evaluate"]
    assert row.reasons == ("no run of this recipe has finished the stage",)


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        ((), ""),
        (("a", "b", "c"), "a; b; c"),
        (("a", "b", "c", "d", "e"), "a; b; c; and 2 more"),
        (("x" * 200,), "x" * 159 + "…"),
    ],
)
def test_a_table_shows_the_first_reasons(reasons: tuple[str, ...], shown: str) -> None:
    assert shortened(reasons) == shown
