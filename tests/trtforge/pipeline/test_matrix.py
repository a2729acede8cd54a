"""A recipe in many formats: variants, group sizes, the order of what was measured, and what becomes of refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evals.perplexity import Scores
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.cli.app import app
from trtforge.formats.table import format_row, quantizing_formats
from trtforge.ground.errors import ForgeError, GateFailed
from trtforge.pipeline import matrix
from trtforge.pipeline.matrix import (
    MatrixRow,
    Variant,
    fitting_group,
    measure,
    pairs,
    parse_variants,
    ungated,
    with_groups,
)
from trtforge.pipeline.stages.verdicts import gates_section
from trtforge.recipe.load import recipe_from_mapping
from trtforge.store.artifact import GateResult


def test_no_list_is_every_format() -> None:
    assert [variant.format for variant in parse_variants(None)] == list(quantizing_formats())


def test_a_list_is_read_in_order_once_each() -> None:
    assert parse_variants("nvfp4, int4_awq:64,nvfp4,int4_awq:128") == [
        Variant("nvfp4"),
        Variant("int4_awq", 64),
        Variant("int4_awq", 128),
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("fp9", "TF-QNT-001"),
        ("nvfp4_svdquant", "TF-QNT-009"),
        ("int4_awq:", "TF-QNT-050"),
        ("int4_awq:x", "TF-QNT-050"),
        ("int4_awq:0", "TF-QNT-050"),
        ("int4_awq:-64", "TF-QNT-050"),
        ("int4_awq:\u0666\u0664", "TF-QNT-050"),
        ("", "TF-QNT-050"),
        (" , ", "TF-QNT-050"),
    ],
)
def test_a_name_that_is_none_is_refused(text: str, code: str) -> None:
    assert refusal(parse_variants, text).code == code


def test_a_variant_changes_format_and_group_and_no_gate_ends_its_run(tmp_path: Path) -> None:
    keys = [override.partition("=")[0] for override in Variant("int4_awq", 64).overrides]
    assert keys == ["quantize.format", "quantize.group_size", "quantize.mixed"]
    own = {"path": "file:items.jsonl", "name": "own", "gate": {"max_drop": "1%"}}
    written = {"name": "x", "model": {"source": "m"}, "evals": {"suite": {"samples": 4}, "custom": [own]}}
    loaded = recipe_from_mapping(written, tmp_path)
    assert all(gates_section(loaded.recipe).values())
    assert not any(gates_section(ungated(loaded).recipe).values())
    assert ungated(loaded).resolved == ungated(loaded).recipe.model_dump(mode="json")
    assert all(gates_section(loaded.recipe).values()), "the recipe itself keeps them, and judges by them"


def test_groups_are_the_default_where_it_divides_and_the_largest_that_does_elsewhere() -> None:
    row = format_row("int4_awq")
    assert fitting_group(row, [1024, 4096]) is None
    assert fitting_group(row, [576, 1536]) == 64
    assert fitting_group(row, [100]) is None, "none does: the refusal is preflight's"
    assert fitting_group(format_row("fp8"), [100]) is None


def test_groups_follow_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = write_tiny_llama(tmp_path / "tiny")
    asked = [Variant("int4_awq"), Variant("int4_awq", 32), Variant("fp8")]
    assert with_groups(asked, checkpoint, ("lm_head",)) == [Variant("int4_awq", 64), Variant("int4_awq", 32), asked[2]]


RNG = np.random.default_rng(0)
BASE = RNG.normal(3, 1, 640)


class Runs:
    """Runs that were: loss of each token by format, over the baseline's; the last is refused, the one before fails."""

    worse: dict[str, float] = {"int4_wo": 0.2, "fp8": 0.01, "int4_awq": 0.1}  # noqa: RUF012

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scores = {"baseline": Scores(BASE, "t", 8, 4)}
        for name, more in self.worse.items():
            self.scores[name] = Scores(BASE + more + RNG.normal(0, 0.01, 640), "t", 8, 4)
        monkeypatch.setattr(matrix, "load_scores", lambda path: self.scores[path])
        monkeypatch.setattr(matrix, "read_headers", lambda path: {"w": SimpleNamespace(nbytes=len(path))})

    def __call__(self, variant: Variant) -> Any:
        if variant.format == "nvfp4":
            raise GateFailed("TF-STO-009", "the audit found two faults")
        if variant.format == "int8_sq":
            raise ForgeError("TF-K3-013", "the target does not take it", remedies=["quantize.format: fp8"])
        summary = {"perplexity": {"value": 1.0}, "emulated": ["all of it"]}
        artifact = {
            "quantize": SimpleNamespace(path=variant.format, summary=summary),
            "evaluate": SimpleNamespace(path=variant.format, summary=summary),
            "baseline": SimpleNamespace(path="baseline", summary=summary),
        }
        return SimpleNamespace(artifact=artifact.__getitem__)


def test_the_best_comes_first_and_each_is_compared_with_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    seen: list[MatrixRow] = []
    asked = parse_variants("int4_wo:64,int8_sq,fp8,nvfp4,int4_awq:64")

    def judged(baseline: Any, variant: Any) -> list[GateResult]:
        assert baseline == "baseline"
        gates = [GateResult("perplexity_increase", variant == "fp8", 0.0, 0.05, "")]
        return [*gates, GateResult("baseline_kl", variant == "int4_wo", 0.0, 0.1, "")]

    rows = measure(asked, runs, judged, seen.append)
    assert [row.variant for row in seen] == asked
    assert [row.variant.format for row in rows] == ["fp8", "int4_awq", "int4_wo", "int8_sq", "nvfp4"]
    assert [row.status for row in rows] == ["measured"] * 3 + ["refused", "failed"]
    assert [row.passed for row in rows] == [False, False, False, None, None], "one missed gate of several is missed"
    assert rows[0].worse is None
    document = rows[1].to_json()
    assert document["passed"] is False and document["gates"][0]["limit"] == 0.05
    assert document["over_the_row_before"]["low"] > 0 and document["group_size"] == 64
    for row, expected in zip(rows[1:3], (0.09, 0.1), strict=True):
        assert row.worse is not None and row.worse.low < np.expm1(expected) < row.worse.high
        assert row.worse.high - row.worse.low < 0.01, "a paired interval is narrow where the losses go together"
    refused = rows[3].to_json()
    assert refused["refusal"] == {
        "code": "TF-K3-013",
        "message": "the target does not take it",
        "remedies": ["quantize.format: fp8"],
    }
    assert refused["perplexity"] is refused["increase"] is refused["passed"] is None
    every = pairs(rows)
    assert [(pair["format"], pair["over"]) for pair in every] == [
        ("int4_awq:64", "fp8"),
        ("int4_wo:64", "fp8"),
        ("int4_wo:64", "int4_awq:64"),
    ]
    assert all(pair["low"] > 0 for pair in every)


def test_without_a_gate_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = measure([Variant("fp8")], Runs(monkeypatch), lambda baseline, variant: (), lambda row: None)
    assert row.passed is None and row.to_json()["emulated"] == ["all of it"] and row.bytes == len("fp8")


@pytest.mark.parametrize(
    "override",
    ["quantize.format=fp8", "quantize.group_size=64", "quantize={format: fp8}", "quantize.mixed={fp8: [o_proj]}"],
)
def test_a_format_that_set_asks_for_is_refused(override: str) -> None:
    result = CliRunner().invoke(app, ["matrix", "smollm2-135m-fp8", "--set", override, "--json"])
    assert result.exit_code == 2 and json.loads(result.stdout)["error"]["code"] == "TF-CLI-063"
