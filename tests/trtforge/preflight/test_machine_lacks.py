"""A recipe for a target that this machine cannot build: a warning for who checks, exit 3 for who runs."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.preflight import BIG, report
from tests.trtforge.preflight.settings import GPU, merged
from trtforge.cli import run as run_command
from trtforge.examination.building import missing_to_build
from trtforge.ground.console import Console
from trtforge.ground.errors import EnvironmentLacks, ExitCode
from trtforge.machine.gpus import Gpu
from trtforge.preflight import refusal
from trtforge.preflight.surroundings import Lack
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store

LACKING = replace(BIG, lacks=(Lack("TensorRT", "does not load", "pip install x"),))


def test_a_target_that_needs_no_gpu_lacks_nothing_here() -> None:
    assert missing_to_build("torch", ()) == ()
    assert missing_to_build("trtllm-engine", ()) == (), "it is left uncompiled, which is a result"


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_tensorrt_lacks_itself_and_a_gpu() -> None:
    names = [item.name for item in missing_to_build("tensorrt", ())]
    assert "TensorRT" in names and "GPU" in names
    for stack, version in (("trt-10.16", "10.16.1.11"), (None, "11.4.0.*")):
        remedy = missing_to_build("tensorrt", (), stack)[0].remedy
        assert remedy == f"pip install 'tensorrt=={version}'"
    assert "GPU" not in [item.name for item in missing_to_build("tensorrt", (Gpu("x", 1 << 30, "sm_90"),))]


def test_it_warns_and_does_not_refuse_the_recipe() -> None:
    found = report(GPU, machine=LACKING)
    assert not found.blocked and [item.code for item in found.lacks] == ["TF-K2-007"]
    assert found.to_json()["passed"] is True and found.to_json()["builds_here"] is False
    error = refusal(found, "x")
    assert isinstance(error, EnvironmentLacks) and error.exit_code == ExitCode.ENVIRONMENT
    assert error.code == "TF-K2-007" and "--until evaluate" in " ".join(error.remedies)
    assert any(remedy.startswith("run in nvcr.io/") for remedy in error.remedies), "the container that has it"


def test_a_waiver_lets_it_go() -> None:
    found = report(merged(GPU, {"waive": {"TF-K2-007": "built elsewhere"}}), machine=LACKING)
    assert found.lacks == ()
    assert report(GPU, machine=BIG).lacks == ()


def recipe(folder: Path) -> Any:
    path = folder / "x.yaml"
    settings = {"name": "x", "model": {"source": "pypi:x==1#x.gguf"}, **GPU}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return load_recipe(path)


def test_a_run_that_ends_before_the_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtforge.examination.building.missing_to_build", lambda *asked: LACKING.lacks)
    monkeypatch.setattr("trtforge.cli.common.inspect_model", lambda loaded: None)
    loaded, store, console = recipe(tmp_path), Store(tmp_path / "store"), Console("quiet", False)
    assert run_command.check_before_run(console, loaded, store, builds=False) is False
    with pytest.raises(EnvironmentLacks, match="cannot be built here") as caught:
        run_command.check_before_run(console, loaded, store)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
