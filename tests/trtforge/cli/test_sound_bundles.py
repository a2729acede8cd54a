"""What is served, measured or copied out is what was published; anything else is refused before it is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.refusals import refusal
from tests.trtforge.store.test_export import flip
from trtforge.cli.bundle import require_sound
from trtforge.cli.main import invoke
from trtforge.cli.stages import copy_out
from trtforge.ground.console import Console
from trtforge.ground.hashing import hash_file
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.integrity import verify_directory
from trtforge.store.store import Store


def publish(store: Store, stage: str = "bundle") -> Artifact:
    out = store.begin(stage, "a" * 64)
    for name, text in (("engine/engine.json", "{}"), ("repository/m/config.pbtxt", "name: 'm'")):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text(text)
    return store.publish(
        out, stage=stage, key="a" * 64, ingredients={}, inputs={}, result=StageResult(stamps={}), seconds=1.0
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", durable=False)


@pytest.mark.parametrize(
    ("gone", "code"),
    [(("manifest.json",), "TF-BND-002"), (("COMPLETE",), "TF-BND-001"), (("manifest.json", "COMPLETE"), "TF-BND-001")],
)
def test_a_bundle_without_its_seal_is_neither_served_nor_measured(
    store: Store, gone: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = publish(store).path
    require_sound(Console("quiet"), bundle)
    for name in gone:
        (bundle / name).unlink()
    assert refusal(require_sound, Console("quiet"), bundle).code == code
    assert invoke(("bench", str(bundle), "--json")) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_verify_says_the_one_hash_that_stands_for_the_bundle(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = publish(store).path
    assert invoke(("verify", str(bundle), "--json")) == 0
    said = json.loads(capsys.readouterr().out)["manifest_sha256"]
    assert said == hash_file(bundle / "manifest.json") == (bundle / "COMPLETE").read_text().strip()
    assert invoke(("verify", str(bundle))) == 0
    assert said in capsys.readouterr().out


def test_a_damaged_bundle_is_not_measured(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = publish(store).path
    flip(bundle / "engine/engine.json", keep_time=True)
    assert invoke(("bench", str(bundle), "--json")) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-BND-005"


def test_what_is_copied_out_verifies_and_damage_is_not_copied(store: Store, tmp_path: Path) -> None:
    artifact = publish(store, "quantize")
    copy_out(Console("quiet"), store, artifact, tmp_path / "copy")
    assert verify_directory(tmp_path / "copy").ok
    flip(artifact.path / "engine/engine.json", keep_time=True)
    os.utime(artifact.path / "engine/engine.json", ns=(1, 1))
    assert refusal(copy_out, Console("quiet"), store, artifact, tmp_path / "other").code == "TF-STO-012"
    assert not (tmp_path / "other").exists()
    assert not artifact.path.exists()
    assert len(list((store.root / "quarantine").iterdir())) == 1
