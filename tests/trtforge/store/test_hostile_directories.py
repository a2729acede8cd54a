"""Directories that somebody made to deceive: links through links, what must not be opened, manifests of any shape."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from scripts.fuzz.published import ODD_FILES, publish_bundle, put_odd, reseal
from tests.support.damage import ODD, changed, places
from tests.support.refusals import refusal
from trtforge.store.artifact import StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.manifest import read_sealed
from trtforge.store.runs import load_record
from trtforge.store.shape import manifest_fault
from trtforge.store.store import Damage, Store


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return publish_bundle(Store(tmp_path / "store", durable=False)).path


def seal(bundle: Path, **parts: Any) -> None:
    """The manifest with some parts replaced, and all hashes that fit it."""
    manifest = {**json.loads((bundle / "manifest.json").read_bytes()), **parts}
    reseal(bundle, manifest, json.dumps(manifest).encode(), hashes=True)


def codes(bundle: Path) -> list[str]:
    return [finding.code for finding in verify_directory(bundle).findings]


#: path of each link and its target, in the words that look harmless, and whether all stay inside
LINKS = [
    ({"a": "engine", "b": "a/engine.json"}, True),
    ({"deep": "engine/sub/sub", "out": "deep/../../../../secret"}, False),
    ({"engine/up": "..", "out": "engine/up/../secret"}, False),
    ({"x": "engine", "x2": "x/..", "out": "x2/../../secret"}, False),
    ({"first": "second", "second": "third", "third": "recipe.yaml"}, True),
    ({"nothing": "not/there"}, True),
    ({"loop": "loop"}, False),
    ({"one": "two", "two": "one"}, False),
]


@pytest.mark.parametrize(("links", "inside"), LINKS)
def test_links_are_held_against_where_they_really_lead(
    bundle: Path, links: dict[str, str], inside: bool, tmp_path: Path
) -> None:
    (bundle.parent / "secret").write_text("s")
    (bundle / "engine" / "sub" / "sub").mkdir(parents=True)
    for name, target in links.items():
        (bundle / name).symlink_to(target)
    listed = [{"path": "link", "target": "recipe.yaml"}, *({"path": n, "target": t} for n, t in links.items())]
    seal(bundle, links=listed, directories=["empty", "engine/sub/sub"])
    assert set(codes(bundle)) == (set() if inside else {"TF-BND-007"})
    store = Store(tmp_path / "other", durable=False)
    out = store.begin("one", "c" * 64)
    shutil.copytree(bundle, out, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest*", "COMP*"))
    arguments: dict[str, Any] = {"stage": "one", "key": "c" * 64, "ingredients": {}, "inputs": {}, "seconds": 0.0}
    if inside:
        assert verify_directory(store.publish(out, result=StageResult(), **arguments).path).ok
    else:
        assert refusal(store.publish, out, result=StageResult(), **arguments).code == "TF-STO-003"


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("name", ["manifest.json", "COMPLETE", "engine/engine.json", "engine", "foreign"])
def test_odd_files_are_refused_at_once(bundle: Path, name: str, kind: str) -> None:
    if (name, kind) == ("foreign", "nothing"):
        pytest.skip("nothing is foreign")
    put_odd(bundle / name, kind)
    started = time.monotonic()
    report = verify_directory(bundle)
    store = Store(bundle.parents[2], durable=False)
    assert isinstance(store.load(bundle), Damage) or name == "foreign"
    assert time.monotonic() - started < 5
    assert not report.ok
    assert {finding.code for finding in report.findings} <= {f"TF-BND-00{n}" for n in (1, 2, 3, 4, 6, 7)}


@pytest.mark.parametrize("name", ["manifest.json", "COMPLETE"])
@pytest.mark.parametrize("place", ["engine", "../.."])
def test_what_seals_a_directory_lies_in_it(bundle: Path, name: str, place: str) -> None:
    moved = (bundle / place / "moved").resolve()
    (bundle / name).rename(moved)
    (bundle / name).symlink_to(os.path.relpath(moved, bundle))
    assert codes(bundle) == ["TF-BND-002"]
    loaded = Store(bundle.parents[2], durable=False).load(bundle)
    assert isinstance(loaded, Damage) and loaded.reason == f"{name} is a symbolic link, no regular file"


def test_a_folder_that_became_a_link_is_not_used(bundle: Path) -> None:
    """Its files still have their sizes and times, somewhere else."""
    (bundle / "repository" / "m").rename(bundle.parents[2] / "elsewhere")
    (bundle / "repository" / "m").symlink_to(bundle.parents[2] / "elsewhere")
    loaded = Store(bundle.parents[2], durable=False).load(bundle)
    assert isinstance(loaded, Damage) and loaded.reason == "repository/m is a symbolic link, no folder"


def test_a_sparse_giant_that_its_manifest_lists_is_not_hashed(bundle: Path) -> None:
    with (bundle / "weights").open("wb") as file:
        file.truncate(1 << 40)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    entry = {"path": "weights", "size": 1 << 40, "sha256": "0" * 64}
    seal(bundle, files=[*manifest["files"], entry])
    assert codes(bundle) == ["TF-BND-036"]


def test_a_directory_that_cannot_be_read_is_said(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("engine"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    report = verify_directory(bundle)
    assert [(finding.code, finding.path) for finding in report.findings] == [("TF-BND-008", "engine")]


def test_a_file_that_a_disk_does_not_give_is_said(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtforge.store import integrity

    broken = OSError(5, "Input/output error")
    monkeypatch.setattr(integrity, "hash_files", lambda files, advance, memo: dict.fromkeys(files, broken))
    assert set(codes(bundle)) == {"TF-BND-008"}


def test_every_field_of_a_manifest_may_be_anything(bundle: Path) -> None:
    """Verification and loading end with findings; what both let through is still a manifest."""
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    store, refused = Store(bundle.parents[2], durable=False), 0
    for at in [(), *places(manifest)]:
        for value in ODD:
            document = changed(manifest, at, value)
            reseal(bundle, document, json.dumps(document).encode(), hashes=False)
            report, loaded = verify_directory(bundle), store.load(bundle)
            assert all(finding.code.startswith("TF-BND-") for finding in report.findings)
            if report.ok:
                assert manifest_fault(document) is None
            refused += isinstance(loaded, Damage)
    assert refused > 500


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("files", [{"path": "../x", "size": 1, "sha256": "0" * 64}], "no path below"),
        ("files", [{"path": "/etc/passwd", "size": 1, "sha256": "0" * 64}], "no path below"),
        ("files", [{"path": "a//b", "size": 1, "sha256": "0" * 64}], "no path below"),
        ("files", [{"path": "a", "size": True, "sha256": "0" * 64}], "size"),
        ("files", [{"path": "a", "size": -1, "sha256": "0" * 64}], "size"),
        ("files", [{"path": "a", "size": 1, "sha256": "0" * 64}] * 2, "twice"),
        ("directories", ["recipe.yaml/below"], "below it"),
        ("gates_passed", False, "gates"),
        ("stamps", {"serves_with": [{"version": "1"}]}, "serves_with"),
        ("stamps", {"isa": "avx2"}, "isa"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_named(bundle: Path, part: str, value: Any, said: str) -> None:
    seal(bundle, **{part: value})
    sealed = read_sealed(bundle)
    assert isinstance(sealed, str)
    assert said in sealed
    assert codes(bundle) == ["TF-BND-002"]


def test_figures_that_were_changed_are_no_cached_result(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["summary"]["limits"]["max_batch_size"] = 400
    reseal(bundle, manifest, json.dumps(manifest).encode(), hashes=False)
    found = Store(bundle.parents[2], durable=False).load(bundle)
    assert isinstance(found, Damage)
    assert "content_hash" in found.reason


def test_a_summary_keyed_by_numbers_is_its_own_after_it_was_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    out = store.begin("one", "d" * 64)
    summary = {"ranks": {index: index for index in range(12)}, "rate": float("inf")}
    store.publish(
        out,
        stage="one",
        key="d" * 64,
        ingredients={},
        inputs={},
        result=StageResult(summary=summary),
        seconds=0.0,
    )
    assert not isinstance(store.find("one", "d" * 64, full=True), Damage)


def test_a_file_whose_name_is_no_utf8_is_not_published(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    out = store.begin("one", "e" * 64)
    (out / os.fsdecode(b"\xff")).write_text("x")
    error = refusal(
        store.publish, out, stage="one", key="e" * 64, ingredients={}, inputs={}, result=StageResult(), seconds=0.0
    )
    assert error.code == "TF-STO-003"


def test_a_record_of_another_shape_is_no_record(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", durable=False)
    record = {"version": 1, "name": "n", "recipe": "r", "updated": "u", "status": "done", "log": "l", "stages": {}}
    path = store.root / "runs" / "n.json"
    path.write_text(json.dumps(record))
    assert load_record(store, "n") is not None
    for at in places(record):
        for value in ([None], 3.5):
            path.write_text(json.dumps(changed(record, at, value)))
            assert load_record(store, "n") is None
    put_odd(path, "fifo")
    assert load_record(store, "n") is None
