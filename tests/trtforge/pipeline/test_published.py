"""A bundle's compiled engine is read back: what nobody sealed must still be what was asked."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from builder.targets.trtllm_engine import target as engine_target
from tests.builder.targets.trtllm.fake_trtllm import write_engine
from tests.builder.targets.trtllm.test_checkpoint import make
from tests.trtforge.cli.test_commands import cli  # noqa: F401 (a fixture)
from trtforge.pipeline.published import verify_published
from trtforge.recipe.schema import Build
from trtforge.store.artifact import StageResult
from trtforge.store.store import Store


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one rank that was not compiled."""
    root = tmp_path_factory.mktemp("store")
    make(root / "model", "none")
    store = Store(root, durable=False)
    out = store.begin("bundle", "a" * 64)
    engine_target.build_engine(
        root / "model", out / "engine", name="tiny", build=Build.model_validate({"target": "trtllm-engine"})
    )
    result = StageResult(stamps={"target": "trtllm-engine", "compiled": False})
    return store.publish(out, stage="bundle", key="a" * 64, ingredients={}, inputs={}, result=result, seconds=0).path


@pytest.fixture
def bundle(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "bundle", symlinks=True))


def compiled(bundle: Path, change: dict[str, Any] | None = None) -> Path:
    config = json.loads((bundle / "engine" / "checkpoint" / "config.json").read_text())
    return write_engine(bundle / "engine" / "trtllm", {"pretrained_config": config, **(change or {})})


def errors(bundle: Path) -> list[tuple[str, str]]:
    report = verify_published(bundle, stamps=False)
    assert report.ok == (not [item for item in report.findings if item.severity == "error"])
    return [(item.code, item.message) for item in report.findings if item.severity == "error"]


def test_an_engine_as_asked_is_accepted(bundle: Path) -> None:
    assert errors(bundle) == []
    (bundle / "engine" / "trtllm").mkdir()
    assert verify_published(bundle, stamps=False).findings == [], "container.sh makes the folder before it builds"
    folder = compiled(bundle)
    (folder / "model.cache").write_bytes(b"timings")
    (folder / "xgrammar_tokenizer_info.json").write_text("{}")
    report = verify_published(bundle, stamps=False)
    assert [(item.code, item.severity) for item in report.findings] == [("TF-BND-030", "warning")]
    assert report.findings[0].message.startswith("4 files ")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": "1.2.0"}, "TF-BLD-062"),
        ({"build_config.max_batch_size": 4}, "TF-BLD-063"),
        ({"pretrained_config.vocab_size": 7}, "TF-BLD-064"),
        ({"pretrained_config.mapping": {"world_size": "x"}}, "TF-BLD-065"),
    ],
)
def test_another_engine_than_was_asked_is_refused(bundle: Path, change: dict[str, Any], code: str) -> None:
    compiled(bundle, change)
    assert any(found == "TF-BND-035" and message.startswith(code) for found, message in errors(bundle))


@pytest.mark.parametrize("text", ["", "{", "{}", "[" * 200_000])
def test_an_unreadable_configuration_is_refused(bundle: Path, text: str) -> None:
    (compiled(bundle) / "config.json").write_text(text)
    assert [(code, message[:10]) for code, message in errors(bundle)] == [("TF-BND-035", "TF-BLD-060")]


def test_plans_without_a_configuration_and_missing_plans_are_refused(bundle: Path) -> None:
    folder = compiled(bundle)
    (folder / "config.json").unlink()
    assert [code for code, _ in errors(bundle)] == ["TF-BND-035"]
    compiled(bundle)
    (folder / "rank0.engine").unlink()
    assert errors(bundle) == [("TF-BND-035", "TF-BLD-061: rank0.engine is missing")]


def test_foreign_files_in_the_folder_are_named_one_by_one(bundle: Path) -> None:
    folder = compiled(bundle)
    for number in range(3):
        (folder / f"extra{number}.so").write_bytes(b"?")
    (folder / "rank01.engine").write_bytes(b"plan")
    (folder / "model.cache").symlink_to("/etc/passwd")
    (folder / ".building").mkdir()
    (folder / ".building" / "rank0.engine").write_bytes(b"half")
    report = verify_published(bundle, stamps=False)
    foreign = sorted(item.path for item in report.findings if item.code == "TF-BND-006")
    names = [".building/rank0.engine", "extra0.so", "extra1.so", "extra2.so", "model.cache", "rank01.engine"]
    assert foreign == [f"engine/trtllm/{name}" for name in names]
    assert not report.ok


def test_a_pipe_in_place_of_the_configuration_is_refused_at_once(bundle: Path) -> None:
    folder = compiled(bundle)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert {code for code, _ in errors(bundle)} == {"TF-BND-006", "TF-BND-035"}


def test_verify_exits_with_1(bundle: Path, cli: Any) -> None:  # noqa: F811
    compiled(bundle, {"version": "1.2.0"})
    done = cli("verify", str(bundle), "--no-stamps")
    assert done.code == 1 and "TF-BND-035" in done.out
