"""``trtforge speculate train`` for real on the tiny model: text, states, training, head; the second run is cached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.cli.main import invoke
from trtforge.drafting.inspection import inspect_folder

pytestmark = pytest.mark.slow

ASKED = ["--tokens", "600", "--draft-vocab", "128", "--steps", "3", "--draft-steps", "2"]


def test_a_head_is_trained_and_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTFORGE_HOME", str(tmp_path / "store"))
    # a part of a few prompts: the tiny model ends no answer before its length is up
    monkeypatch.setattr("trtforge.pipeline.stages.drafter.text.PART_PROMPTS", 6)
    recipe = str(write_tiny_recipe(tmp_path, format="none", kv_cache="none", layers=7))
    assert invoke(["speculate", "train", recipe, *ASKED, "-o", "head", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ran = [stage["stage"] for stage in document["stages"]]
    assert ran[-4:] == ["draft-text", "draft-states", "draft-train", "draft-head"] and "bench" not in ran
    found = inspect_folder(tmp_path / "head", tmp_path / "model")
    assert not found.errors and found.head is not None and found.head.draft_vocab_size == 128
    card = (tmp_path / "head" / "README.md").read_text(encoding="utf-8")
    assert "3 steps" in card and "| chat | 24 |" in card
    assert {path.name for path in (tmp_path / "head").iterdir()} == {"config.json", "model.safetensors", "README.md"}

    assert invoke(["speculate", "train", recipe, *ASKED, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {stage["status"] for stage in again["stages"]} == {"cached"}
    assert invoke(["speculate", "train", recipe, *ASKED[:-2], "--draft-steps", "1", "--json"]) == 0
    other = {stage["stage"]: stage["status"] for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert (other["draft-text"], other["draft-states"], other["draft-train"]) == ("cached", "cached", "ran")


def test_a_budget_that_is_no_time_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(write_tiny_recipe(tmp_path, format="none", kv_cache="none"))
    assert invoke(["speculate", "train", recipe, "--time-budget", "soon", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-CLI-053"
