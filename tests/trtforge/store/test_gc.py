"""Collecting: what a recipe's last run or a living run uses stays; the rest goes by age or number."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.synthetic import recipe, stages
from trtforge.ground.errors import ForgeError
from trtforge.pipeline.pipeline import Pipeline
from trtforge.store.gc import collect, list_artifacts, show_artifact
from trtforge.store.integrity import verify_directory
from trtforge.store.runs import active_run, all_records, load_record
from trtforge.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / ".trtforge", durable=False)
    for seed in (1, 2):
        Pipeline(stages(), store).run(recipe(seed))
    return store


def test_listing_says_who_uses_what(store: Store) -> None:
    rows = list_artifacts(store)
    assert len(rows) == 9  # intake does not read the seed
    assert sorted(row.stage for row in rows if row.used_by == ("synthetic",)) == sorted(s.name for s in stages())
    assert all(row.bytes > 0 and row.gates_passed and row.damage is None for row in rows)
    assert rows[-1].to_json()["used_by"] in ([], ["synthetic"])


def test_unreferenced_artifacts_go_and_the_last_run_stays_cached(store: Store) -> None:
    dry = collect(store, dry_run=True)
    assert len(dry.removed) == 4  # intake serves both; the linked bundle is the last run's
    assert len(list_artifacts(store)) == 9
    report = collect(store)
    assert [r.key for r in report.removed] == [r.key for r in dry.removed]
    assert report.bytes == dry.bytes > 0
    assert report.kept == 5
    result = Pipeline(stages(), store).run(recipe(2))
    assert {o.status for o in result.outcomes} == {"cached"}


def test_age_and_number(store: Store) -> None:
    assert collect(store, older_than=3600, dry_run=True).removed == []
    assert collect(store, keep_last=1, dry_run=True).removed == []
    for row in list_artifacts(store):
        if row.stage == "quantize":
            os.utime(row.path / "COMPLETE", (time.time() - 7200,) * 2)
    assert [row.stage for row in collect(store, older_than=3600).removed] == ["quantize"]


def test_forgetting_a_recipe_frees_everything(store: Store) -> None:
    with pytest.raises(ForgeError) as caught:
        collect(store, forget_runs=["nobody"])
    assert caught.value.code == "TF-STO-006"
    link = Path("bundles/synthetic")
    kept = [row.path for row in list_artifacts(store) if row.path == link.resolve()]
    assert len(collect(store, forget_runs=["synthetic"], dry_run=True).removed) == 8
    link.unlink()
    assert len(kept) == 1
    assert len(collect(store, forget_runs=["synthetic"], dry_run=True).removed) == 9
    assert load_record(store, "synthetic") is not None
    collect(store, forget_runs=["synthetic"])
    assert list_artifacts(store) == []
    assert all_records(store) == []


def test_a_linked_bundle_stays_after_a_later_run_of_its_recipe(store: Store, tmp_path: Path) -> None:
    link = tmp_path / "experiment" / "synthetic"
    Pipeline(stages(), store).run(recipe(3), output=link.parent)
    bundle = link.resolve()
    Pipeline(stages(), store).run(recipe(4))
    collect(store)
    assert verify_directory(bundle).ok
    link.unlink()
    collect(store)
    assert not bundle.exists()


def test_what_a_living_run_uses_stays(store: Store) -> None:
    unused = next(row for row in list_artifacts(store) if not row.used_by)
    artifact = store.load(unused.path)
    with active_run(store) as active:
        assert active.use(artifact)
        assert unused.key not in [row.key for row in collect(store).removed]
    assert [row.key for row in collect(store).removed] == [unused.key]
    with active_run(store) as active:
        assert not active.use(artifact), "collected meanwhile"


def test_leftovers_and_scratch(store: Store) -> None:
    scratch = store.scratch_path("one", "a" * 64)
    scratch.mkdir(parents=True)
    (scratch / "download").write_bytes(b"x" * 10)
    assert scratch not in collect(store).other
    with store.lock("one", "a" * 64):
        assert scratch not in collect(store, scratch=True).other
    assert scratch in collect(store, scratch=True).other
    assert not scratch.exists()


def test_show(store: Store) -> None:
    rows = list_artifacts(store)
    first = rows[0]
    assert show_artifact(store, f"{first.stage}/{first.key[:6]}").path == first.path
    assert show_artifact(store, first.key).path == first.path
    assert show_artifact(store, "intake").path.parent.name == "intake"
    assert show_artifact(store, str(first.path)).path == first.path
    with pytest.raises(ForgeError) as caught:
        show_artifact(store, "quantize")
    assert caught.value.code == "TF-STO-007"
    with pytest.raises(ForgeError) as caught:
        show_artifact(store, "zzz")
    assert caught.value.code == "TF-STO-006"


def test_damaged_artifact_is_listed_as_such(store: Store) -> None:
    path = list_artifacts(store)[0].path
    (path / "COMPLETE").unlink()
    assert next(row for row in list_artifacts(store) if row.path == path).damage
