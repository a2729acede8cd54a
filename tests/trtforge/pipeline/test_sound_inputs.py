"""A stage runs on nothing but what was published: damage that times and sizes hide is met before it is used."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.refusals import refusal
from tests.support.synthetic import Counter, content_hashes, recipe, stages
from trtforge.ground import hashing
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file, hash_files
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.inputs import SoundInputs
from trtforge.pipeline.observer import Observer
from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import StageContext
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.export import DamagedArtifact
from trtforge.store.integrity import verify_directory
from trtforge.store.quarantine import quarantine_of
from trtforge.store.store import Damage, Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / ".trtforge", durable=False)


class Messages(Observer):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def flip_in_silence(path: Path) -> None:
    """One bit, with size and times as they were."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def age(store: Store) -> None:
    """Every file as if published long ago, so that the cheap check has no reason to hash it."""
    for artifact in store.artifacts():
        assert isinstance(artifact, Artifact)
        for entry in artifact.manifest["files"]:
            os.utime(artifact.path / entry["path"], ns=(1, 1))


def statuses(result: Any) -> dict[str, str]:
    return {outcome.stage: outcome.status for outcome in result.outcomes}


def names(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.iterdir()) if folder.is_dir() else []


def test_damage_is_met_before_a_stage_runs_on_it_and_all_that_was_made_of_it_goes(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    whole = pipeline.run(recipe())
    before = content_hashes(store)
    age(store)
    flip_in_silence(whole.artifact("quantize").path / "data" / "part1.bin")
    assert set(statuses(pipeline.run(recipe())).values()) == {"cached"}, "a run that runs nothing reads nothing"
    watching = Messages()
    result = pipeline.run(recipe(), force=["bench"], observer=watching)
    assert statuses(result) == {"intake": "cached", **dict.fromkeys(["quantize", "evaluate", "bench", "bundle"], "ran")}
    assert names(store.root / "quarantine") == ["bench", "bundle", "evaluate", "quantize"]
    assert content_hashes(store) == before
    assert result.link is not None and verify_directory(result.link).ok
    assert (result.quarantined[0].code, result.quarantined[0].stage) == ("TF-STO-012", "quantize")
    assert {(item.code, item.stage) for item in result.quarantined[1:]} == {
        ("TF-STO-013", name) for name in ("evaluate", "bench", "bundle")
    }
    assert "data/part1.bin" in watching.texts[0] and watching.texts[0].startswith("TF-STO-012")
    assert result.to_json()["quarantined"][1]["reason"].startswith("was made of quantize")
    assert set(statuses(pipeline.run(recipe())).values()) == {"cached"}


def test_full_check_heals_what_was_made_of_the_damage_too(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    whole = pipeline.run(recipe())
    age(store)
    flip_in_silence(whole.artifact("intake").path / "data" / "part0.bin")
    assert set(statuses(pipeline.run(recipe(), full_check=True)).values()) == {"ran"}


def test_what_another_recipe_made_of_the_damage_goes_too_and_the_rest_stays(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    pipeline.run(recipe(1))
    other = pipeline.run(recipe(2))
    age(store)
    flip_in_silence(other.artifact("quantize").path / "data" / "part0.bin")
    pipeline.run(recipe(2), force=["bench"])
    assert names(store.root / "quarantine") == ["bench", "bundle", "evaluate", "quantize"]
    assert set(statuses(pipeline.run(recipe(1))).values()) == {"cached"}, "it was made of another artifact"


def test_a_forced_stage_that_makes_the_same_bytes_replaces_its_damaged_artifact(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    whole = pipeline.run(recipe())
    age(store)
    victim = whole.artifact("quantize").path / "data" / "part2.bin"
    intact = victim.read_bytes()
    flip_in_silence(victim)
    result = pipeline.run(recipe(), force=["quantize"])
    assert victim.read_bytes() == intact
    assert statuses(result)["bundle"] == "ran", "it was made of the damage"


def test_damage_in_the_middle_of_a_run_is_met_by_the_next_stage(store: Store) -> None:
    class Damaging(Counter):
        times = 0

        def run(self, context: StageContext) -> StageResult:
            type(self).times += 1
            if self.times == 1:
                victim = context.inputs["quantize"].path / "data" / "part0.bin"
                victim.write_bytes(victim.read_bytes()[::-1])
            return super().run(context)

    chain = stages()
    chain[3] = Damaging("bench", ("quantize",))
    result = Pipeline(chain, store).run(recipe())
    assert set(statuses(result).values()) == {"ran"}
    assert Damaging.times == 2, "what ran on the damage ran again"
    assert result.bundle is not None and verify_directory(result.artifact("quantize").path).ok


def test_an_input_that_is_damaged_again_and_again_ends_the_run(store: Store) -> None:
    class Broken(Counter):
        def run(self, context: StageContext) -> StageResult:
            victim = context.inputs["intake"].path / "data" / "part0.bin"
            victim.write_bytes(b"")
            return super().run(context)

    pipeline = Pipeline([Counter("intake"), Broken("one", ("intake",)), Counter("two", ("intake", "one"))], store)
    error = refusal(pipeline.run, recipe())
    assert error.code == "TF-STO-012"
    assert "part0.bin" in error.message


def test_an_input_that_is_gone_while_a_stage_runs_is_said_by_code(store: Store) -> None:
    class Losing(Counter):
        def run(self, context: StageContext) -> StageResult:
            store.quarantine(Damage(context.inputs["intake"].path, "test"))
            (context.inputs["intake"].path / "data" / "part0.bin").read_bytes()
            raise AssertionError

    assert refusal(Pipeline([Counter("intake"), Losing("one", ("intake",))], store).run, recipe()).code == "TF-STO-014"


def test_no_input_is_hashed_twice_in_a_run_and_a_cached_run_hashes_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(stages(), store)
    pipeline.run(recipe())
    age(store)
    hashed: list[str] = []

    def counting(path: Path, advance: Any = None) -> str:
        hashed.append(f"{path.parent.parent.parent.name}/{path.name}")
        return hash_file(path, advance)

    monkeypatch.setattr(hashing, "hash_file", counting)
    pipeline.run(recipe())
    assert hashed == []
    pipeline.run(recipe(), force=["evaluate", "bundle"])
    assert sorted(name for name in hashed if name.startswith("quantize/")) == [
        f"quantize/part{i}.bin" for i in range(3)
    ]


def test_what_was_made_anew_meanwhile_is_not_taken_out_for_the_damage_before_it(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    damaged = pipeline.run(recipe()).artifact("quantize")
    age(store)
    flip_in_silence(damaged.path / "data" / "part1.bin")
    pipeline.run(recipe(), full_check=True)  # another run heals it
    assert quarantine_of(store, DamagedArtifact(damaged, "data/part1.bin is not what it was")) == []
    assert set(statuses(pipeline.run(recipe(), full_check=True)).values()) == {"cached"}


def test_two_runs_that_meet_the_same_damage_both_finish(store: Store) -> None:
    pipeline = Pipeline(stages(), store)
    whole = pipeline.run(recipe())
    age(store)
    flip_in_silence(whole.artifact("quantize").path / "data" / "part1.bin")
    ended: list[Any] = []

    def one(stage: str) -> None:
        try:
            ended.append(Pipeline(stages(), store).run(recipe(), until=stage, force=[stage]))
        except ForgeError as error:
            ended.append(error)

    threads = [threading.Thread(target=one, args=(stage,)) for stage in ("evaluate", "bench")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 2
    # one may find its input taken away under its hands; running again is then enough
    assert all(not isinstance(item, ForgeError) or item.code == "TF-STO-014" for item in ended)
    assert set(statuses(pipeline.run(recipe(), full_check=True)).values()) <= {"cached", "ran"}
    assert all(verify_directory(a.path).ok for a in store.artifacts())


def test_many_files_are_hashed_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "THREADS", 3)
    monkeypatch.setattr(hashing, "_WORTH_THREADS", 1)
    files = {}
    for index in range(7):
        files[str(index)] = tmp_path / str(index)
        files[str(index)].write_bytes(bytes([index]) * index * 1_000_000)
    files["gone"] = tmp_path / "gone"
    seen: list[float] = []
    found = hash_files(files, seen.append)
    assert isinstance(found.pop("gone"), FileNotFoundError)
    assert found == {name: hash_file(path) for name, path in files.items() if name != "gone"}
    assert sum(seen) == 21_000_000

    def stop(count: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hash_files(files, stop)


def test_damage_between_two_stages_of_one_run_is_met(store: Store) -> None:
    """Size and time of writing are as they were; the time of the last change cannot be."""
    Pipeline(stages(), store).run(recipe())
    age(store)
    artifact = next(item for item in store.artifacts() if isinstance(item, Artifact) and item.manifest["files"])
    sound = SoundInputs(store)
    sound.require([artifact], SilentProgress())
    flip_in_silence(artifact.path / artifact.manifest["files"][0]["path"])
    assert isinstance(store.load(artifact.path), Artifact), "the cheap check has no reason to look"
    assert refusal(sound.require, [artifact], SilentProgress()).code == "TF-STO-012"
