"""Content that several artifacts hold is stored once, and a change of one never passes for the content of another."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.synthetic import Counter, recipe
from trtforge.ground import files
from trtforge.ground.hashing import HashMemo, hash_file
from trtforge.pipeline.pipeline import Pipeline
from trtforge.store import objects
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.export import copy_published
from trtforge.store.gc import collect, disk_bytes
from trtforge.store.integrity import verify_directory
from trtforge.store.store import Damage, Store

WEIGHTS = bytes(range(256)) * 64
KEYS = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(objects, "SHARED_FROM", len(WEIGHTS))
    monkeypatch.setattr(objects, "shares_blocks", lambda folder: False)
    return Store(tmp_path / ".trtforge", durable=False)


def publish(
    store: Store, key: str = KEYS[0], data: bytes = WEIGHTS, *, mode: int = 0o644, handed_out: bool = False
) -> Artifact:
    with store.lock("one", key):
        out = store.begin("one", key)
        (out / "weights").mkdir()
        (out / "weights" / "model.bin").write_bytes(data)
        (out / "weights" / "model.bin").chmod(mode)
        (out / "small.json").write_text("{}")
        result = StageResult(handed_out=handed_out)
        return store.publish(out, stage="one", key=key, ingredients={}, inputs={}, result=result, seconds=0)


def weights(artifact: Artifact) -> Path:
    return artifact.path / "weights" / "model.bin"


def inode(artifact: Artifact) -> int:
    return weights(artifact).stat().st_ino


def write_through(path: Path, data: bytes) -> None:
    """What a user must force: the file's permission forbids it."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(data)


def in_silence(path: Path) -> None:
    """One byte changes, size and time of writing do not: what a disk does that rots."""
    before = path.stat()
    write_through(path, bytes([path.read_bytes()[0] ^ 1]))
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def age(store: Store) -> None:
    """An hour passes, so that nothing was written at the time at which it was sealed."""
    for path in store.root.glob("artifacts/*/*/**/*"):
        if path.is_file() and path.name not in ("manifest.json", "COMPLETE"):
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def test_the_same_content_has_one_inode_that_nobody_may_write_to(store: Store) -> None:
    first, second, other = publish(store), publish(store, KEYS[1]), publish(store, KEYS[2], WEIGHTS[::-1])
    assert inode(first) == inode(second) != inode(other)
    assert weights(first).stat().st_mode & 0o777 == 0o444
    assert (first.path / "small.json").stat().st_nlink == 1
    assert all(verify_directory(artifact.path).ok for artifact in (first, second, other))
    assert disk_bytes(store) < 2 * len(WEIGHTS) + 8192
    assert not list((store.root / "tmp").iterdir())


def test_a_program_stays_one(store: Store) -> None:
    first, second = publish(store), publish(store, KEYS[1], mode=0o755)
    assert inode(first) != inode(second) and os.access(weights(second), os.X_OK)


def test_what_replaces_a_file_changes_one_artifact(store: Store) -> None:
    """Editors, sed -i, rsync and cp --remove-destination write another file under the name."""
    first, second = publish(store), publish(store, KEYS[1])
    subprocess.run(["sed", "-i", "1s/^./x/", str(weights(first))], check=True)
    assert isinstance(store.find("one", KEYS[0], full=True), Damage)
    assert verify_directory(second.path).ok and isinstance(store.find("one", KEYS[1], full=True), Artifact)


def test_who_forces_a_write_is_found_out_in_every_artifact(store: Store) -> None:
    artifacts = [publish(store, key) for key in KEYS[:2]]
    age(store)
    write_through(weights(artifacts[0]), b"other")
    for artifact in artifacts:
        found = store.load(artifact.path)
        assert isinstance(found, Damage) and "was changed after it was published" in found.reason
        assert [item.code for item in verify_directory(artifact.path).findings] == ["TF-BND-005"]


@pytest.mark.parametrize("change", [in_silence, lambda path: write_through(path, b"other"), Path.unlink])
def test_damage_does_not_spread_to_what_is_published_after_it(store: Store, change: object) -> None:
    first = publish(store)
    change(store.objects.path(hash_file(weights(first))))
    second = publish(Store(store.root, durable=False), KEYS[1])
    assert inode(second) != inode(first) and verify_directory(second.path).ok
    third = publish(store, KEYS[2])
    assert inode(third) == inode(second)


def test_an_object_that_is_no_file_is_not_followed(store: Store, tmp_path: Path) -> None:
    digest = hash_file(weights(publish(store)))
    store.objects.path(digest).unlink()
    (tmp_path / "elsewhere").write_bytes(WEIGHTS)
    store.objects.path(digest).symlink_to(tmp_path / "elsewhere")
    assert weights(publish(store, KEYS[1])).stat().st_nlink == 2
    assert not store.objects.path(digest).is_symlink() and (tmp_path / "elsewhere").stat().st_nlink == 1
    store.objects.path(digest).unlink()
    store.objects.path(digest).mkdir()
    assert verify_directory(publish(store, KEYS[2]).path).ok


@pytest.mark.parametrize("binds", [True, False])
def test_what_people_work_in_is_shared_only_where_permission_protects_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, binds: bool
) -> None:
    monkeypatch.setattr(objects, "read_only_binds", lambda folder: binds)
    inside, bundle, after = publish(store), publish(store, KEYS[1], handed_out=True), publish(store, KEYS[2])
    assert (inode(inside) == inode(bundle)) == binds and inode(inside) == inode(after)
    if not binds:
        with weights(bundle).open("r+b") as file:
            file.write(b"other")
        assert verify_directory(inside.path).ok and not verify_directory(bundle.path).ok


def test_a_lone_bundle_is_no_object_for_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "read_only_binds", lambda folder: False)
    bundle, inside = publish(store, handed_out=True), publish(store, KEYS[1])
    assert inode(bundle) != inode(inside)


def test_copies_that_share_blocks_are_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "shares_blocks", lambda folder: True)
    assert inode(publish(store)) != inode(publish(store, KEYS[1]))
    assert not (store.root / "objects").exists()


def test_without_hard_links_copies_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    artifacts = [publish(store, key) for key in KEYS]
    assert len({inode(artifact) for artifact in artifacts}) == 3
    assert all(verify_directory(artifact.path).ok for artifact in artifacts)


def test_shared_content_goes_with_the_last_that_holds_it(store: Store) -> None:
    for key in KEYS[:2]:
        publish(store, key)
    os.utime(store.artifact_path("one", KEYS[0]) / "COMPLETE", (0, 0))
    dry, report = (collect(store, keep_last=1, dry_run=dry) for dry in (True, False))
    assert [row.key for row in report.removed] == [KEYS[0]] and dry.bytes == report.bytes < len(WEIGHTS)
    assert report.objects == 0 and verify_directory(store.artifact_path("one", KEYS[1])).ok
    dry, report = (collect(store, dry_run=dry) for dry in (True, False))
    assert dry.bytes == report.bytes > len(WEIGHTS) and report.objects == 1
    assert [path for path in (store.root / "objects").rglob("*") if path.is_file()] == []


def test_collection_counts_what_a_killed_run_left_among_the_objects(store: Store) -> None:
    left = store.objects.path("0" * 64)
    left.parent.mkdir(parents=True)
    left.write_bytes(WEIGHTS)
    assert collect(store, dry_run=True).bytes == len(WEIGHTS) and left.exists()
    report = collect(store)
    assert (report.bytes, report.objects) == (len(WEIGHTS), 1) and not left.exists()


def test_copies_leave_the_store_as_files_of_their_own(store: Store, tmp_path: Path) -> None:
    publish(store, KEYS[1])
    artifact = publish(store)
    copy_published(artifact, tmp_path / "exported")
    subprocess.run(["cp", "-a", str(artifact.path), str(tmp_path / "copied")], check=True)
    packed = tmp_path / "packed.tar"
    subprocess.run(["tar", "-cf", str(packed), "-C", str(artifact.path), "."], check=True)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", str(packed), "-C", str(tmp_path / "unpacked")], check=True)
    for name in ("exported", "copied", "unpacked"):
        copy = tmp_path / name
        assert verify_directory(copy).ok and (copy / "weights" / "model.bin").stat().st_nlink == 1
        write_through(copy / "weights" / "model.bin", b"other")
    assert verify_directory(artifact.path).ok


def test_many_publish_the_same_while_objects_are_collected(store: Store) -> None:
    stop = threading.Event()
    faults: list[BaseException] = []

    def sweep() -> None:
        try:
            while not stop.is_set():
                for path in list((store.root / "objects").rglob("*")):
                    if path.is_file():
                        path.unlink(missing_ok=True)
        except BaseException as error:
            faults.append(error)

    def work(first: int) -> None:
        try:
            for index in range(12):
                publish(Store(store.root, durable=False), f"{first}{index:02}".ljust(64, "0"))
        except BaseException as error:
            faults.append(error)

    sweeper = threading.Thread(target=sweep)
    workers = [threading.Thread(target=work, args=(first,)) for first in (1, 2, 3)]
    for thread in (sweeper, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    sweeper.join()
    assert faults == []
    found = store.artifacts()
    assert len(found) == 36 and all(verify_directory(item.path).ok for item in found)
    assert not list((store.root / "tmp").iterdir())


def test_a_run_reads_shared_content_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own links change no content, and another name of what was hashed needs no second reading."""
    from trtforge.ground import hashing

    first, second = publish(store), publish(store, KEYS[1])
    read: list[str] = []

    def counting(path: Path, advance: object = None) -> str:
        read.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(hashing, "hash_file", counting)
    for artifact in (first, second):
        assert isinstance(store.check_bytes(artifact), Artifact)
    assert read == [], "published by this process"
    store.hashes.clear()
    for artifact in (first, second):
        assert isinstance(store.check_bytes(artifact), Artifact)
    assert read.count("model.bin") == 1
    in_silence(weights(first))
    assert isinstance(store.check_bytes(second), Damage)


def test_a_memo_is_of_one_state_of_a_file(tmp_path: Path) -> None:
    memo, path = HashMemo(), tmp_path / "x"
    path.write_bytes(b"one")
    before, one, told = path.stat(), memo.file(path), []
    assert memo.file(path, told.append) == one == hash_file(path) and told == [3.0]
    (tmp_path / "y").hardlink_to(path)
    memo.renew(before, path)
    path.write_bytes(b"two!")
    memo.renew(before, path)
    assert memo.file(path) == hash_file(path) != one


def test_stages_that_hand_on_the_same_weights_store_them_once(store: Store, tmp_path: Path) -> None:
    class Copying(Counter):
        def run(self, context):
            (context.out / "model.bin").write_bytes(WEIGHTS)
            return StageResult()

    chain = [Copying("quantize"), Copying("graph", ("quantize",)), Copying("build", ("graph",))]
    pipeline = Pipeline(chain, store)
    made = pipeline.run(recipe())
    paths = [made.artifact(stage.name).path / "model.bin" for stage in chain]
    assert len({path.stat().st_ino for path in paths}) == 1
    age(store)
    write_through(paths[2], b"other")
    healed = pipeline.run(recipe())
    assert {item.stage for item in healed.quarantined} == {"quantize", "graph", "build"}
    assert all((healed.artifact(stage.name).path / "model.bin").read_bytes() == WEIGHTS for stage in chain)


def test_what_is_tried_out_of_a_file_system_is_what_it_does(tmp_path: Path) -> None:
    path = tmp_path / "read-only"
    path.write_bytes(WEIGHTS)
    path.chmod(0o444)
    try:
        path.open("r+b").close()
        refused = False
    except PermissionError:
        refused = True
    assert files.read_only_binds(tmp_path) == refused
    cloned = subprocess.run(["cp", "--reflink=always", str(path), str(tmp_path / "clone")], capture_output=True)
    assert files.shares_blocks(tmp_path) == (cloned.returncode == 0)
    assert [item.name for item in tmp_path.iterdir() if item.name not in ("read-only", "clone")] == []
