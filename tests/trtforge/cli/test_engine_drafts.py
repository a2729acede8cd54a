"""``trtforge engine info`` of engines that speculate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
        "chosen by measured costs",
        "4 up to 4 requests, 1 up to 16 requests, then none",
        "off below 25% over 64 requests",
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
