"""Publishing: nothing unfinished counts, everything finished is complete, damage is found and replaced."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from tests.support.synthetic import Counter, recipe
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.files import copy_tree
from trtforge.pipeline.pipeline import Pipeline
from trtforge.store import locks
from trtforge.store.artifact import Artifact, GateResult, StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.manifest import gates_from_json
from trtforge.store.store import Damage, Store, default_root, is_disk_full


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".trtforge", durable=False)


def publish(store: Store, key: str = "a" * 64, text: str = "hello", **result: object) -> Artifact:
    with store.lock("one", key):
        out = store.begin("one", key)
        (out / "file.txt").write_text(text)
        return store.publish(
            out,
            stage="one",
            key=key,
            ingredients={"section": {}},
            inputs={},
            result=StageResult(**result),
            seconds=0.1,
        )


def test_published_artifact_is_found_and_verifies(store: Store) -> None:
    artifact = publish(store)
    assert store.find("one", "a" * 64) == artifact
    assert store.find("one", "b" * 64) is None
    assert verify_directory(artifact.path).ok
    assert not list((store.root / "tmp").iterdir())


def test_durable_store_publishes_too(tmp_path: Path) -> None:
    artifact = publish(Store(tmp_path, durable=True, protect=True))
    assert (artifact.path / "file.txt").stat().st_mode & 0o222 == 0
    assert verify_directory(artifact.path).ok


def test_unfinished_directory_does_not_count(store: Store) -> None:
    artifact = publish(store)
    (artifact.path / "COMPLETE").unlink()
    found = store.find("one", "a" * 64)
    assert isinstance(found, Damage)
    assert "COMPLETE" in found.reason


@pytest.mark.parametrize("full", [False, True])
def test_changed_size_is_found_by_the_cheap_check_and_changed_bytes_by_the_full_one(store: Store, full: bool) -> None:
    artifact = publish(store)
    (artifact.path / "file.txt").write_text("hellO" if full else "hello!")
    assert isinstance(store.find("one", "a" * 64, full=full), Damage)


def test_content_hash_ignores_measured_files_and_figures(store: Store) -> None:
    hashes = set()
    for index in range(2):
        key = f"{index}" * 64
        out = store.begin("one", key)
        (out / "times.json").write_text(str(index))
        (out / "data").write_text("same")
        result = StageResult(summary={"n": 1}, measurements={"s": index}, measured=("times.json",))
        published = store.publish(out, stage="one", key=key, ingredients={}, inputs={}, result=result, seconds=index)
        hashes.add(published.manifest["content_hash"])
        assert verify_directory(published.path).ok
        (published.path / "times.json").write_text("9")
        assert not verify_directory(published.path).ok, "a measured file is protected like any other"
    assert len(hashes) == 1


def test_forced_identical_content_keeps_the_old_directory(store: Store) -> None:
    first = publish(store)
    inode = first.path.stat().st_ino
    assert publish(store).path.stat().st_ino == inode
    assert publish(store, text="other").path.stat().st_ino != inode
    assert not list((store.root / "tmp").iterdir())


@pytest.mark.parametrize("kind", ["escape", "absolute", "fifo", "reserved"])
def test_unpublishable_content_is_refused(store: Store, kind: str) -> None:
    out = store.begin("one", "c" * 64)
    if kind == "escape":
        (out / "sub").mkdir()
        (out / "sub" / "link").symlink_to("../../x")
    elif kind == "absolute":
        (out / "link").symlink_to("/etc/passwd")
    elif kind == "fifo":
        import os

        os.mkfifo(out / "pipe")
    else:
        (out / "COMPLETE").write_text("x")
    with pytest.raises(ForgeError) as caught:
        store.publish(out, stage="one", key="c" * 64, ingredients={}, inputs={}, result=StageResult(), seconds=0)
    assert caught.value.code == "TF-STO-003"
    assert store.find("one", "c" * 64) is None


def test_inner_links_and_empty_directories_survive_and_are_verified(store: Store, tmp_path: Path) -> None:
    out = store.begin("one", "d" * 64)
    (out / "ensemble" / "1").mkdir(parents=True)
    (out / "target").write_text("x")
    (out / "ensemble" / "link").symlink_to("../target")
    artifact = store.publish(out, stage="one", key="d" * 64, ingredients={}, inputs={}, result=StageResult(), seconds=0)
    copy = tmp_path / "copy"
    copy_tree(artifact.path, copy)
    assert verify_directory(copy).ok
    (copy / "ensemble" / "1").rmdir()
    assert [f.code for f in verify_directory(copy).findings] == ["TF-BND-003"]
    (copy / "ensemble" / "1").mkdir()
    (copy / "ensemble" / "link").unlink()
    (copy / "ensemble" / "link").symlink_to("/etc/passwd")
    assert [f.code for f in verify_directory(copy).findings] == ["TF-BND-007"]


def test_sweep_leaves_what_a_living_run_holds(store: Store) -> None:
    mine = store.begin("one", "e" * 64)
    other = store.begin("two", "f" * 64)
    with store.lock("one", "e" * 64):
        removed = store.sweep()
        assert removed == [other]
        assert mine.exists()
    assert store.sweep() == [mine]


def test_a_second_run_waits_and_is_told_for_whom(store: Store) -> None:
    told: list[str] = []
    order: list[str] = []
    ready = threading.Event()

    def first() -> None:
        with store.lock("one", "a" * 64):
            ready.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    ready.wait()
    with store.lock("one", "a" * 64, told.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert len(told) == 1
    assert "process" in told[0]


def test_try_hold_says_no_while_held(store: Store) -> None:
    path = store.lock_path("one", "a" * 64)
    with store.lock("one", "a" * 64), locks.try_hold(path) as held:
        assert not held
    with locks.try_hold(path) as held:
        assert held


def test_disk_full_is_recognised_through_libraries() -> None:
    inner = OSError(errno.ENOSPC, "No space left on device")
    wrapped = RuntimeError("could not serialize")
    wrapped.__cause__ = inner
    assert is_disk_full(inner)
    assert is_disk_full(wrapped)
    assert is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert is_disk_full(OSError(errno.EFBIG, "File too large")), "a limit on file sizes (ulimit -f)"
    assert not is_disk_full(OSError(errno.EACCES, "no"))


class Full(Counter):
    """Meets a really full device (``/dev/full``) after it has written something."""

    def run(self, context):
        (context.out / "some").write_bytes(b"x" * 5000)
        (context.scratch / "kept").write_bytes(b"y" * 700)
        with Path("/dev/full").open("wb") as file:
            file.write(b"z" * 100_000)


def test_full_disk_is_an_error_with_numbers_and_leaves_only_scratch(store: Store) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        Pipeline([Full()], store).run(recipe())
    error = caught.value
    assert error.code == "TF-STO-002"
    assert error.numbers["written_bytes"] == 5000
    assert error.numbers["needed_bytes_at_least"] > 5000
    assert error.numbers["kept_scratch_bytes"] == 700
    assert error.numbers["free_bytes"] > 0
    assert not list((store.root / "tmp").iterdir())
    assert store.artifacts() == []


@pytest.mark.parametrize("phase", ["list_content", "seal"])
def test_full_disk_while_publishing(store: Store, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    pipeline = Pipeline([Counter()], store)
    with monkeypatch.context() as patch:
        patch.setattr(f"trtforge.store.store.{phase}", fail)
        with pytest.raises(EnvironmentLacks, match="TF-STO-002"):
            pipeline.run(recipe())
    assert store.artifacts() == []
    assert not list((store.root / "tmp").iterdir())
    assert pipeline.run(recipe()).outcomes[0].status == "ran"


class Huge(Counter):
    def disk_estimate(self, recipe, inputs):
        return 1 << 60


def test_too_little_space_is_refused_before_the_work(store: Store) -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        Pipeline([Huge()], store).run(recipe())
    assert caught.value.code == "TF-STO-010"
    assert caught.value.numbers["needed_bytes"] == 1 << 60


def test_store_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks) as caught:
        Store(tmp_path / "file" / ".trtforge")
    assert caught.value.code == "TF-STO-001"


def test_store_of_another_layout_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, durable=False)
    (tmp_path / "store.json").write_text('{"version": 99}')
    with pytest.raises(ForgeError) as caught:
        Store(tmp_path)
    assert caught.value.code == "TF-STO-008"


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRTFORGE_HOME", raising=False)
    assert default_root() == tmp_path / ".trtforge"
    monkeypatch.setenv("TRTFORGE_HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home"
    assert default_root(tmp_path / "option") == tmp_path / "option"


def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "nowhere", read_only=True)
    assert store.artifacts() == []
    assert store.find("one", "a" * 64) is None
    assert not (tmp_path / "nowhere").exists()


def test_figures_that_went_wrong_are_kept_as_text(store: Store) -> None:
    gate = GateResult("slo", False, float("inf"), 2.0, "no answer")
    artifact = publish(store, summary={"kl": float("nan")}, gates=[gate], measurements={"x": [float("-inf")]})
    loaded = store.find("one", "a" * 64)
    assert isinstance(loaded, Artifact)
    assert loaded.manifest == artifact.manifest
    assert loaded.summary["kl"] == "nan"
    assert gates_from_json(loaded.manifest["gates"]) == [gate]
