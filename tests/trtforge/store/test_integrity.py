"""One flipped byte anywhere is found, and so is every other way a copy can differ from what was published."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtforge.store.artifact import StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.manifest import link_stays_inside
from trtforge.store.store import Store


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("store"), durable=False)
    out = store.begin("bundle", "a" * 64)
    rng = random.Random(7)
    for name, size in (("engine/model.onnx", 9000), ("engine/engine.json", 120), ("recipe.yaml", 33), ("one", 1)):
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    (out / "nothing").write_bytes(b"")
    (out / "repository" / "ensemble" / "1").mkdir(parents=True)
    (out / "repository" / "link").symlink_to("../recipe.yaml")
    return store.publish(
        out,
        stage="bundle",
        key="a" * 64,
        ingredients={"section": {"x": "ü"}},
        inputs={},
        result=StageResult(summary={"text": "ß"}, measured=("one",)),
        seconds=1.0,
    ).path


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found(published: Path, data: st.DataObject) -> None:
    files = sorted(p for p in published.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)
    path = data.draw(st.sampled_from(files))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    status = path.stat()
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    try:
        path.write_bytes(changed)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # times prove nothing
        report = verify_directory(published)
        assert not report.ok
        assert all(finding.code.startswith("TF-BND-") for finding in report.findings)
    finally:
        path.write_bytes(content)
    assert verify_directory(published).ok


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("remove", "TF-BND-003"),
        ("truncate", "TF-BND-004"),
        ("append", "TF-BND-004"),
        ("extra", "TF-BND-006"),
        ("extra_directory", "TF-BND-006"),
        ("extra_link", "TF-BND-006"),
        ("link_instead", "TF-BND-007"),
        ("no_complete", "TF-BND-001"),
        ("no_manifest", "TF-BND-002"),
        ("half_complete", "TF-BND-002"),
    ],
)
def test_other_changes(published: Path, tmp_path: Path, change: str, code: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(published, copy, symlinks=True)
    target = copy / "engine" / "model.onnx"
    if change == "remove":
        target.unlink()
    elif change == "truncate":
        target.write_bytes(target.read_bytes()[:-1])
    elif change == "append":
        target.write_bytes(target.read_bytes() + b"\0")
    elif change == "extra":
        (copy / "engine" / "other").write_text("")
    elif change == "extra_directory":
        (copy / "engine" / "folder").mkdir()
    elif change == "extra_link":
        (copy / "engine" / "link").symlink_to("/etc/passwd")
    elif change == "link_instead":
        target.rename(tmp_path / "moved")
        target.symlink_to(tmp_path / "moved")
    elif change == "no_complete":
        (copy / "COMPLETE").unlink()
    elif change == "no_manifest":
        (copy / "manifest.json").unlink()
    else:
        (copy / "COMPLETE").write_text((copy / "COMPLETE").read_text()[:-2])
    report = verify_directory(copy)
    assert [finding.code for finding in report.findings] == [code]
    assert report.to_json()["ok"] is False


def test_a_link_to_a_directory_is_verified_as_the_directory(published: Path, tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(published)
    report = verify_directory(tmp_path / "name")
    assert report.ok
    assert report.files == 5


def test_missing_directory(tmp_path: Path) -> None:
    assert [f.code for f in verify_directory(tmp_path / "nowhere").findings] == ["TF-BND-001"]


@pytest.mark.parametrize(
    ("name", "target", "inside"),
    [
        ("link", "other", True),
        ("a/link", "../other", True),
        ("a/link", "../../other", False),
        ("link", "..", False),
        ("link", "/etc", False),
        ("a/b/link", "../c/../../x", True),
        ("a/b/link", "../../../a", False),
    ],
)
def test_link_stays_inside(name: str, target: str, inside: bool) -> None:
    assert link_stays_inside(name, target) is inside
