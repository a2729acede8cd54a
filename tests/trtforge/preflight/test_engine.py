"""Waivers, skipped rules, the refusal, and that preflight stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.preflight import report
from tests.support.tiny import write_tiny_llama
from tests.trtforge.preflight import folders
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.preflight import all_rules, check, check_report, refusal
from trtforge.preflight.engine import make_facts
from trtforge.preflight.features import engine_version, in_range
from trtforge.recipe import merge
from trtforge.recipe.load import recipe_from_mapping

ROOT = Path(__file__).parents[3]


def loaded(**settings: Any) -> Any:
    return recipe_from_mapping({"name": "x", "model": {"source": "m"}, **settings})


class TestWaivers:
    BAD: ClassVar[dict[str, Any]] = {"triton": {"version": "25.12"}}

    def test_a_waived_finding_stays_visible_and_does_not_block(self) -> None:
        report = check_report(loaded(**self.BAD, waive={"TF-K2-003": "served by our own build"}), machine=False)
        (finding,) = report.findings
        assert finding.waived == "served by our own build"
        assert not report.blocked
        assert report.to_json()["passed"] is True

    def test_without_the_waiver_it_blocks(self) -> None:
        assert check_report(loaded(**self.BAD), machine=False).blocked

    def test_what_cannot_happen_cannot_be_waived(self) -> None:
        report = check_report(
            loaded(speculation={"method": "lookahead"}, waive={"TF-K12-001": "please"}), machine=False
        )
        assert report.blocked
        assert all(finding.waived is None for finding in report.findings)

    def test_an_unknown_code_names_the_nearest(self) -> None:
        with pytest.raises(ForgeError) as caught:
            check(loaded(waive={"TF-K2-03": "x"}), machine=False)
        assert caught.value.code == "TF-RCP-014"
        assert "TF-K2-003" in caught.value.remedies[0]

    def test_a_waiver_needs_a_reason(self) -> None:
        with pytest.raises(ForgeError) as caught:
            check(loaded(waive={"TF-K2-003": "  "}), machine=False)
        assert caught.value.code == "TF-RCP-014"


def test_rules_without_their_facts_are_named_not_passed() -> None:
    report = check_report(loaded(), machine=False)
    assert "TF-K4-001" in report.skipped
    assert "TF-K11-002" in report.skipped
    assert report.rules == len(all_rules())
    #: a recipe that names no draft, no adapters and no parameters leaves nothing unknown about them; torch asks no GPU
    unasked = {"draft", "adapters", "parameters", "build.architectures"}
    assert set(report.skipped) == {code for code, rule in all_rules().items() if set(rule.needs) - unasked}


def test_kernels_of_gpus_that_nobody_named_are_unknown() -> None:
    settings: dict[str, dict[str, Any]] = {"build": {"target": "trtllm-engine"}, "quantize": {"format": "nvfp4"}}
    unnamed = check_report(loaded(**settings), machine=False)
    assert {"TF-K3-002", "TF-K3-003"} <= {
        code for code, reason in unnamed.skipped.items() if "build.architectures" in reason
    }
    settings["build"]["architectures"] = ["sm_90"]
    named = check_report(loaded(**settings), machine=False)
    assert not [reason for reason in named.skipped.values() if "build.architectures" in reason]


def test_a_draft_that_nobody_looked_into_is_named_as_unknown() -> None:
    settings = {"speculation": {"method": "eagle3", "draft": "hf:a/b", "max_draft_len": 4}}
    report = check_report(loaded(**settings), machine=False)
    assert "draft" in report.skipped["TF-K12-005"]


def test_the_refusal_lists_every_blocking_finding() -> None:
    limits = {"max_batch_size": 64, "max_num_tokens": 32}
    report = check_report(loaded(build={"limits": limits}, speculation={"method": "lookahead"}), machine=False)
    error = refusal(report, "x")
    assert error.exit_code == ExitCode.BAD_INPUT
    assert {"TF-K12-001", "TF-K9-003"} <= set(error.numbers)
    assert "2 reasons" in error.message
    assert len(error.remedies) >= 2


def test_blocking_findings_come_first() -> None:
    report = check_report(loaded(bench={"concurrency": [64]}, speculation={"method": "lookahead"}), machine=False)
    blocking = [finding.blocks for finding in report.findings]
    assert blocking == sorted(blocking, reverse=True)
    assert not all(blocking)


def test_codes_are_well_formed_and_reasons_are_sentences() -> None:
    for code, rule in all_rules().items():
        area, kind, number = code.split("-")
        assert area == "TF"
        assert kind[0] == "K"
        assert kind[1:].isdigit()
        assert len(number) == 3
        assert rule.why.endswith(".")
        assert rule.source is None or rule.source.startswith("https://")
        assert not rule.title.endswith(".")


RECIPES = {
    "torch": "name: x\nmodel: {source: model}\nbuild: {limits: {max_seq_len: 128}, kv_cache: {memory: 8MiB}}\n",
    "trtllm-engine": """
name: x
model: {source: model, dtype: float16}
quantize: {format: fp8, kv_cache: fp8}
build:
  target: trtllm-engine
  architectures: [sm_90]
  limits: {max_seq_len: 128}
  trtllm: {kv_reuse: true, lora: {adapters: {one: adapter}}}
speculation: {method: medusa, draft: draft, heads: 2, choices: [[0], [0, 0]]}
triton: {layout: inflight_batcher_llm, parameters: {normalize_log_probs: "true"}}
""",
}


@pytest.mark.parametrize("target", RECIPES)
def test_preflight_imports_nothing_heavy(target: str, tmp_path: Path) -> None:
    """In a process of its own, on a recipe whose model is here, as ``trtforge check`` does it."""
    script = """
import json, sys
from trtforge.cli.main import invoke
code = invoke(["check", sys.argv[1], "--json"])
names = ("torch", "transformers", "modelopt", "onnx", "matplotlib", "rich.console", "numpy")
heavy = [name for name in names if name in sys.modules]
print(json.dumps({"code": code, "heavy": heavy}), file=sys.stderr)
"""
    write_tiny_llama(tmp_path / "model")
    folders.write_adapter(tmp_path / "adapter")
    folders.write_draft(tmp_path / "draft")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPES[target])
    done = subprocess.run(
        [sys.executable, "-c", script, str(recipe)], capture_output=True, text=True, cwd=ROOT, check=True, timeout=120
    )
    document = json.loads(done.stdout)
    assert document["skipped"] == {}, "everything is here, so that every rule runs"
    assert json.loads(done.stderr.splitlines()[-1])["heavy"] == []
    assert document["passed"] is (target == "torch"), "draft and adapter are of another model"


def test_rows_of_the_tables_hold_for_the_versions_that_they_name() -> None:
    facts = make_facts(
        loaded(stack="trtllm-1.2.1", build={"target": "trtllm-engine"}, triton={"layout": "inflight_batcher_llm"}),
        model=None, formats={}, kv_modes={}, machine=None, locate=None, parameters=None,
    )  # fmt: skip
    assert str(engine_version(facts)) == "1.2.1"
    assert in_range(facts, "1.2", None)
    assert in_range(facts, "1.2.1", "1.3")
    assert not in_range(facts, "1.3", None)
    assert not in_range(facts, None, "1.2.1")
    assert in_range(
        make_facts(loaded(), model=None, formats={}, kv_modes={}, machine=None, locate=None, parameters=None), "9", None
    )


def test_one_fault_is_said_once() -> None:
    settings = {"quantize": {"format": "int4_awq", "group_size": 256}}
    assert [item.code for item in report(settings).findings if item.kind == "K4"] == ["TF-K4-002"]
    several = {"quantize": {"format": "int4_awq", "group_size": 128}, "build": {"target": "tensorrt"}}
    found = report(merge.deep_merge(several, {"build": {"parallel": {"tp": 2}}}))
    error = refusal(found, "x")
    assert len(error.numbers) > 1, "several reasons"
    assert len(set(error.remedies)) == len(error.remedies)
    parts = str(error.asked).split("; ")
    assert len(set(parts)) == len(parts)
