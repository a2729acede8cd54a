"""``trtforge compare`` over sealed bundles and evaluations: what it reads, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.samples import Samples
from evals.suite import suite_items
from evals.tasks import answer_items
from trtforge.cli.app import invoke
from trtforge.store.addendum import seal_addendum
from trtforge.store.artifact import GateResult, StageResult
from trtforge.store.manifest import gates_to_json
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle

NLL = np.random.default_rng(0).gamma(2.0, 1.0, 1024)
INTERVAL = {"value": 0.1, "low": 0.05, "high": 0.15, "confidence": 0.95}
GATE = GateResult("perplexity_increase", True, 0.1, 0.2, "fine")
LEVEL: dict[str, Any] = {"concurrency": 1, "tokens_per_second": 50.0, "ttft": {"p50": 0.2}}


def publish(
    folder: Path,
    stage: str,
    name: str,
    *,
    worse: float = 0.0,
    lost: int = 0,
    gate: GateResult = GATE,
    **summary: Any,
) -> Path:
    """A sealed bundle, or artifact of evaluate, with losses and answers."""
    store = Store(folder / name, durable=False)
    out = store.begin(stage, "a" * 64)
    inner = out / "evidence" if stage == "bundle" else out
    inner.mkdir(exist_ok=True)
    ends = ("-quantized", "") if stage == "bundle" else ("", "samples/")
    figures = {"tokens_sha256": "a" * 64, "window": 8, "stride": 4}
    (inner / f"perplexity{ends[0]}.json").write_text(json.dumps(figures))
    np.save(inner / f"nll{ends[0]}.npy", NLL + worse)
    items = suite_items(4)
    answers = {
        item.name: "" if i < lost else item.answer.removeprefix(r"^\s*").removesuffix(r"\b")
        for i, item in enumerate(items)
    }
    samples = Samples("tasks", {}, out=inner, scratch=folder / f"{name}-scratch")
    answer_items(lambda batch: [answers[item.name] for item in batch], items, samples=samples)
    if stage == "bundle":
        (inner / "samples/tasks.jsonl").rename(inner / "tasks-quantized.jsonl")
        (inner / "samples").rmdir()
        (out / "report.json").write_text(json.dumps({"data": {"gates": gates_to_json([gate])}}))
    bench = {"sweeps": [{"levels": [LEVEL]}], "machine": {"cpus": 2, "cpu": "x86"}}
    result = StageResult(
        summary={"increase": INTERVAL, "perplexity": {"increase": INTERVAL}, **summary},
        gates=[gate],
        measurements={"bench": bench} if stage == "bundle" and not summary.get("not_run") else {},
    )
    ingredients: dict[str, Any] = {"section": {}, "inputs": {}, "tools": {}, "host": {}, "code_version": "1"}
    made = store.publish(out, stage=stage, key="a" * 64, ingredients=ingredients, inputs={}, result=result, seconds=1.0)
    link = folder / f"{name}-link"
    link.symlink_to(made.path)
    return link


def bundle(folder: Path, name: str, size: int, **more: Any) -> Path:
    kept = {"format": name, "kv_cache": "fp8", "bytes": {"engine": size}, "not_run": {}}
    return publish(folder, "bundle", name, **{**kept, **more})


def test_bundles_and_evaluations_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = bundle(tmp_path, "fp8", 400), bundle(tmp_path, "nvfp4", 200, worse=0.02, lost=3)
    third = publish(tmp_path, "evaluate", "int4", worse=0.01, divergence={"kl": INTERVAL})
    out = tmp_path / "out"
    assert invoke(["compare", str(first), str(second), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    [pair] = said["pairs"]
    assert said["against"] == "fp8-link" and pair["increase"]["value"] == pytest.approx(np.expm1(0.02))
    assert (pair["tasks"]["lost"], pair["tasks"]["gained"]) == (3, 0)
    assert said["axes"] == ["size", "perplexity", "speed"] and said["front"] == ["fp8-link", "nvfp4-link"]
    assert [entry["engine_bytes"] for entry in said["entries"]] == [400, 200]
    assert said["entries"][0]["tokens_per_second"] == 50.0 and said["entries"][0]["machine"] == "2 x86"
    assert {path.name for path in out.iterdir()} == {"report.json", "report.md", "report.html", "junit.xml"}
    assert 'tests="1"' in (out / "junit.xml").read_text()
    assert invoke(["compare", str(first), str(third)]) == 0
    assert "int4-link" in capsys.readouterr().out


def test_an_addendum_decides_and_lends_its_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    not_run = {"parity": {"reason": "no GPU", "gates": ["top1_agreement"]}}
    first, second = bundle(tmp_path, "a", 4), bundle(tmp_path, "b", 2, not_run=not_run)
    figures = {"bench": {"levels": [{**LEVEL, "tokens_per_second": 900.0}]}}
    assert invoke(["compare", str(first), str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is None, "nobody looked at the second engine"
    manifest = verify_bundle(second, stamps=False).manifest_sha256
    gate = gates_to_json([GATE])
    content = {"passed": True, "gates": gate, "figures": figures, "server": {"address": "h:1"}}
    seal_addendum(second.resolve(), str(manifest), content)
    assert invoke(["compare", str(first), str(second), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] is True and said["entries"][1]["tokens_per_second"] == 900.0


def test_what_is_damaged_other_or_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other = bundle(tmp_path, "a", 4), publish(tmp_path, "intake", "b")
    assert invoke(["compare", str(good), "--json"]) == 2
    assert "TF-EVL-025" in capsys.readouterr().out
    assert invoke(["compare", str(good), str(other), "--json"]) == 2
    assert "TF-EVL-024" in capsys.readouterr().out
    path = good / "evidence/nll-quantized.npy"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    assert invoke(["compare", str(good), str(good), "--json"]) == 2
    assert "TF-BND-005" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_bundle_that_failed_is_shown_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """The first or another one, and beside one that nobody could look at."""
    missed = GateResult("perplexity_increase", False, 0.3, 0.2, "too much")
    good, failed = bundle(tmp_path, "a", 4), bundle(tmp_path, "b", 2, gate=missed)
    unseen = bundle(tmp_path, "c", 3, not_run={"parity": {"reason": "no GPU", "gates": ["top1_agreement"]}})
    for folders in ([good, failed], [failed, good], [unseen, failed]):
        assert invoke(["compare", *map(str, folders), *options]) == 1
        said = capsys.readouterr().out
        assert "FAILED" in said and "b-link" in said
    assert invoke(["compare", str(good), str(unseen), *options]) == 0
