"""``trtforge engine info`` of engines that speculate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.speculation.costs import StepCosts
from runtime.speculation.policy import AdaptivePolicy
from tests.runtime import draft_support as support
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.cli.main import invoke

SPEC = Spec("speculators", taps=(1, 5, 8), norm_before_residual=True, seed=3)


def engine_of(root: Path, **keys: object) -> Path:
    target = support.write_target(root / "target", SPEC)
    return support.build(root, target, support.write_head(root / "head", target, SPEC), support.speculation(**keys))


def test_the_record_and_the_engine_that_drafts_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engine_of(
        tmp_path,
        ngram_on_top=True,
        draft_len_schedule={4: 4, 16: 1},
        acceptance_rate_threshold="25%",
        acceptance_rate_window_size=64,
        dynamic_tree={"depth": 4, "top_k": 2, "total": 9},
    )
    assert invoke(["engine", "info", str(engine)]) == 0
    out = capsys.readouterr()
    shown = " ".join((out.out + out.err).split())
    for words in (
        "eagle3",
        "longest draft 4 tokens",
        "dynamic: depth 4, 2 children, best 9 nodes",
        "on top, 2 to 8 tokens found again",
        "after layers 2, 6, 9",
        "lengths the schedule's",
        "4 up to 4 requests, 1 up to 16 requests, then none",
        "off for good below 25% over 64 steps",
        "EAGLE-3 (speculators): 48 draft tokens, embedding target's, head own, norm_before_residual",
        "under the same block numbers",
    ):
        assert words in shown, words
    assert invoke(["engine", "info", str(engine), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["speculation"]["method"] == "eagle3"
    assert {row["stored"] for row in document["draft_engine"]["execution"]} == {"float32"}


def test_a_record_that_was_changed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = engine_of(tmp_path)
    record = support.config_of(engine)
    record["speculation"]["method"] = "wishes"
    (engine / "engine.json").write_text(json.dumps(record))
    assert invoke(["engine", "info", str(engine)]) == 2
    out = capsys.readouterr()
    assert "TF-BLD-020" in out.out + out.err and "wishes" in out.out + out.err


def test_measuring_shows_costs_assumed_acceptance_and_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_of(tmp_path, ngram_on_top=True)
    assert invoke(["engine", "info", str(engine), "--measure", "--json"]) == 0
    policy = json.loads(capsys.readouterr().out)["policy"]
    assert policy["measured"] == "now"
    assert {"1", "2", "5", "9"} <= set(policy["costs"]["verify_ms"])
    assert policy["costs"]["draft_ms"]["1"]["1"] > 0
    assert set(policy["acceptance"]) == {"eagle3", "ngram/2", "ngram/3", "ngram/4-7", "ngram/8-15", "ngram/16+"}
    assert {row["drafts"] for row in policy["acceptance"].values()} == {0}
    assert set(policy["choices"]["1"]) == set(policy["acceptance"])
    assert invoke(["engine", "info", str(engine), "--measure"]) == 0
    out = capsys.readouterr()
    shown = " ".join((out.out + out.err).split())
    assert "chosen by measured costs and acceptance" in shown
    assert "ngram/16+ assumed 0.95" in shown and "draft tokens that pay best" in shown


def test_a_bundle_shows_what_its_stage_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    engine_of(tmp_path).rename(bundle / "engine")
    assert invoke(["engine", "info", str(bundle), "--json"]) == 0
    assert "policy" not in json.loads(capsys.readouterr().out)
    costs = StepCosts({1: 0.008, 2: 0.009, 5: 0.011}, {1: 0.008}, {1: 0.001}, most_tokens=64)
    policy = AdaptivePolicy(4, costs, sources=["eagle3"])
    (bundle / "evidence").mkdir()
    (bundle / "evidence" / "speculation-speed.json").write_text(json.dumps({"policy": policy.explain()}))
    assert invoke(["engine", "info", str(bundle)]) == 0
    out = capsys.readouterr()
    shown = " ".join((out.out + out.err).split())
    assert "measured by the stage speculation" in shown and "8.00" in shown


def test_nothing_is_measured_of_an_engine_that_drafts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_of(tmp_path)
    record = support.config_of(engine)
    del record["speculation"]
    (engine / "engine.json").write_text(json.dumps(record))
    assert invoke(["engine", "info", str(engine), "--measure"]) == 2
    out = capsys.readouterr()
    assert "TF-CLI-018" in out.out + out.err
