"""Damage of a cached artifact never gets a new seal: it is found when it is looked up, or when it is copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.refusals import refusal
from tests.support.synthetic import Counter, recipe
from tests.support.synthetic import stages as synthetic_stages
from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import StageContext
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.export import DamagedArtifact, copy_artifact, copy_artifact_file
from trtforge.store.integrity import verify_directory
from trtforge.store.store import Damage, Store


class Copying(Counter):
    """A bundle stage that copies an input, as the real one does."""

    def run(self, context: StageContext) -> StageResult:
        copy_artifact(context.inputs["quantize"], context.out / "all")
        copy_artifact(context.inputs["quantize"], context.out / "part", below="data")
        copy_artifact_file(context.inputs["quantize"], "data/part0.bin", context.out / "one.bin")
        return StageResult()


def flip(path: Path, *, keep_time: bool) -> None:
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / ".trtforge", durable=False)
    return Pipeline([*synthetic_stages()[:2], Copying("bundle", ("quantize",))], store)


def quantized(pipeline: Pipeline) -> Artifact:
    found = [a for a in pipeline.store.artifacts() if isinstance(a, Artifact) and a.stage == "quantize"]
    for entry in found[0].manifest["files"]:  # as if published long ago
        os.utime(found[0].path / entry["path"], ns=(1, 1))
    return found[0]


def test_a_file_written_after_publishing_is_found_by_the_cheap_check(pipeline: Pipeline) -> None:
    pipeline.run(recipe())
    artifact = quantized(pipeline)
    flip(artifact.path / "data/part1.bin", keep_time=False)
    found = pipeline.store.load(artifact.path)
    assert isinstance(found, Damage)
    assert "changed after it was published" in found.reason
    result = pipeline.run(recipe(), force=["bundle"])
    assert {o.stage: o.status for o in result.outcomes} == {"intake": "cached", "quantize": "ran", "bundle": "ran"}
    assert result.bundle is not None
    assert verify_directory(result.bundle).ok


def test_silent_damage_is_found_by_the_copy_and_built_again_by_the_run(pipeline: Pipeline, tmp_path: Path) -> None:
    before = pipeline.run(recipe()).bundle
    assert before is not None
    intact = (before / "all/data/part1.bin").read_bytes()
    artifact = quantized(pipeline)
    flip(artifact.path / "data/part1.bin", keep_time=True)
    assert isinstance(pipeline.store.load(artifact.path), Artifact), "the cheap check cannot see it"
    error = refusal(copy_artifact, artifact, tmp_path / "copy")
    assert error.code == "TF-STO-012"
    assert "data/part1.bin" in error.message
    result = pipeline.run(recipe(), force=["bundle"])
    assert {o.stage: o.status for o in result.outcomes} == {"intake": "cached", "quantize": "ran", "bundle": "ran"}
    assert result.bundle is not None
    assert (result.bundle / "all/data/part1.bin").read_bytes() == intact


def test_only_links_and_files_that_the_manifest_lists_are_copied(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.run(recipe())
    artifact = quantized(pipeline)
    (artifact.path / "foreign").symlink_to("data")
    with pytest.raises(DamagedArtifact, match="foreign is a symbolic link"):
        copy_artifact(artifact, tmp_path / "copy")
    (artifact.path / "foreign").unlink()
    os.mkfifo(artifact.path / "pipe")
    with pytest.raises(DamagedArtifact, match="pipe is no regular file"):
        copy_artifact(artifact, tmp_path / "copy2")
    (artifact.path / "pipe").unlink()
    (artifact.path / "data/part0.bin").unlink()
    os.mkfifo(artifact.path / "data/part0.bin")
    with pytest.raises(DamagedArtifact, match="no regular file"):
        copy_artifact_file(artifact, "data/part0.bin", tmp_path / "one")


def test_missing_and_foreign_files_are_not_copied_in_silence(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.run(recipe())
    artifact = quantized(pipeline)
    with pytest.raises(DamagedArtifact):
        copy_artifact_file(artifact, "gone.json", tmp_path / "gone.json")
    (artifact.path / "foreign").write_text("x")
    with pytest.raises(DamagedArtifact, match="foreign"):
        copy_artifact(artifact, tmp_path / "copy")
    (artifact.path / "foreign").unlink()
    (artifact.path / "data/part0.bin").unlink()
    with pytest.raises(DamagedArtifact, match="is missing"):
        copy_artifact(artifact, tmp_path / "copy2")
