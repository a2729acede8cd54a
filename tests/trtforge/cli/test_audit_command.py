"""``trtforge audit`` as a user runs it, and the document of its rules."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quantize.forensics.docs import BEGIN, END, render
from quantize.forensics.hits import RULES
from tests.quantize.forensics import checkpoints as made
from trtforge.cli.app import app

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    tensors, sections = made.modelopt("FP8")
    del tensors["model.layers.0.mlp.up_proj.input_scale"]
    made.write(tmp_path / "model", tensors, sections)
    return "model"


def test_a_sound_checkpoint_ends_with_zero(tmp_path: Path) -> None:
    made.write(tmp_path, *made.awq())
    result = run(str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "awq, sound (62 rules, 0 errors, 0 warnings, 0 notes)" in result.output


def test_the_table_says_what_why_and_what_works(faulty: str) -> None:
    result = run(faulty)
    assert result.exit_code == 1
    assert "TF-K7-102" in result.output and "input_scale is missing" in result.output
    assert "why:" in result.output and "works:" in result.output and "faulty" in result.output


def test_json_is_one_document(faulty: str) -> None:
    result = run(faulty, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and document["passed"] is False and document["tool"] == "modelopt"
    (found,) = document["findings"]
    assert found["names"] == ["model.layers.0.mlp.up_proj"] and found["source"].startswith("https://")


def test_sarif_and_github_forms(faulty: str) -> None:
    result = run(faulty, "--format", "sarif")
    (found,) = json.loads(result.stdout)["runs"][0]["results"]
    assert result.exit_code == 1 and found["ruleId"] == "TF-K7-102"
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "model"
    result = run(faulty, "--format", "github")
    assert result.exit_code == 1 and result.stdout.startswith("::error file=model,title=TF-K7-102 ")


def test_a_waived_finding_does_not_count(faulty: str) -> None:
    result = run(faulty, "--waive", "TF-K7-102=the layer is replaced", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["findings"][0]["waived"] == "the layer is replaced"
    for wrong in ("TF-K7-999=x", "TF-K7-102", "TF-K7-102= "):
        result = run(faulty, "--waive", wrong, "--json")
        assert result.exit_code == 2 and json.loads(result.stdout)["error"]["code"] == "TF-RCP-014"


def test_what_is_no_checkpoint_is_refused_in_every_form(tmp_path: Path) -> None:
    for place, code in ((tmp_path / "nowhere", "TF-AUD-001"), (tmp_path, "TF-AUD-002")):
        assert run(str(place)).exit_code == 2
        result = run(str(place), "--format", "sarif")
        assert result.exit_code == 2
        assert json.loads(result.stdout)["runs"][0]["results"][0]["ruleId"] == code
    assert json.loads(run(str(tmp_path), "--format", "sarfi", "--json").stdout)["error"]["code"] == "TF-CLI-060"


def test_the_base_is_named(tmp_path: Path) -> None:
    base = made.write(tmp_path / "base", *made.unquantized(), config={"rope_theta": 1e6})
    made.write(tmp_path / "made", *made.modelopt("NVFP4"))
    result = run(str(tmp_path / "made"), "--base", str(base), "--json")
    assert [found["code"] for found in json.loads(result.stdout)["findings"]] == ["TF-AUD-183"]


def test_the_document_holds_the_rules() -> None:
    text = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    inside = text.split(BEGIN)[1].split(END)[0].strip()
    assert inside == render().strip(), "python -m quantize.forensics.docs docs/audit.md"


def test_every_rule_says_why() -> None:
    for rule in RULES.rules.values():
        assert rule.why.endswith(".") and len(rule.why) > 30 and rule.title and not re.search(r"\.$", rule.title)
        assert rule.source is not None or rule.code in ("TF-K6-103", "TF-K6-104", "TF-QNT-042")


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_lies_in_a_weight_files_place_is_no_absent_one(tmp_path: Path, kind: str, shards: int) -> None:
    made.write(tmp_path, *made.modelopt("FP8"), shards=shards)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "dangling link": lambda: path.symlink_to("none")}[kind]()
    result = run(str(tmp_path))
    assert result.exit_code == 1 and "TF-AUD-106" in result.output and path.name in result.output, result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_weight_file_that_must_not_be_read_is_a_finding(tmp_path: Path) -> None:
    made.write(tmp_path, *made.modelopt("FP8"))
    (tmp_path / "model.safetensors").chmod(0)
    result = run(str(tmp_path))
    assert result.exit_code == 1 and "TF-AUD-106" in result.output and "Permission denied" in result.output


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -5), ("hidden_size", 65), ("hidden_size", "64"), ("vocab_size", 10**6), ("vocab_size", 0),
        ("rms_norm_eps", float("nan")), ("num_hidden_layers", float("inf")), ("num_attention_heads", True),
    ],
)  # fmt: skip
def test_sizes_that_the_weights_contradict_are_found_without_a_base(tmp_path: Path, key: str, value: Any) -> None:
    made.write(tmp_path, *made.modelopt("FP8"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    result = run(str(tmp_path))
    assert result.exit_code == 1 and "TF-AUD-185" in result.output and key in result.output, result.output


def test_a_configuration_alone_is_sound_as_far_as_it_goes(tmp_path: Path) -> None:
    made.write(tmp_path, *made.modelopt("FP8"))
    (tmp_path / "model.safetensors").unlink()
    result = run(str(tmp_path))
    assert result.exit_code == 0 and "sound as far as a checkpoint without weights can tell" in result.output
