"""The real pipeline over a tiny checkpoint: every stage, its cache, its determinism, its bundle."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.store.verify import verify_bundle

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ["intake", "baseline", "quantize", "evaluate", "graph", "build", "parity", "repository"]

pytestmark = pytest.mark.e2e


def run(recipe: Path, store: Path, *options: str, fresh: bool = False) -> dict[str, Any]:
    """A run in a process of its own: a fresh interpreter, or one that begins with the heavy libraries imported."""
    words = ["tests.support.tiny_recipe", str(recipe), "--store", str(store), *options]
    if fresh:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    else:
        done = forked.run(words[0], words[1:])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def column(result: dict[str, Any], name: str) -> dict[str, Any]:
    return {stage["stage"]: stage[name] for stage in result["stages"]}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def first(recipe: Path) -> dict[str, Any]:
    return run(recipe, recipe.parent / ".trtforge", "--until", "repository", fresh=True)


def test_every_stage_runs_and_every_gate_passes(first: dict[str, Any]) -> None:
    assert column(first, "status") == dict.fromkeys(OFFLINE, "ran")
    gates = {gate["name"]: gate["passed"] for stage in first["stages"] for gate in stage["gates"]}
    expected = ("audit", "perplexity_increase", "generation_sanity", "top1_agreement", "engine_kl", "engine_answers",
                "engine_sanity", "deployed_weights")  # fmt: skip
    assert gates == dict.fromkeys(expected, True)


def test_an_unchanged_rerun_is_cached_and_imports_no_torch(recipe: Path, first: dict[str, Any]) -> None:
    again = run(recipe, recipe.parent / ".trtforge", "--until", "repository", fresh=True)
    assert column(again, "status") == dict.fromkeys(OFFLINE, "cached")
    assert again["torch_imported"] is False


def test_a_fresh_store_ends_with_the_same_hashes(recipe: Path, first: dict[str, Any], tmp_path: Path) -> None:
    other = run(recipe, tmp_path / ".trtforge", "--until", "repository")
    assert column(other, "content_hash") == column(first, "content_hash")
    assert column(other, "key") == column(first, "key")


def test_a_forced_stage_makes_the_same_content_and_nothing_after_it_runs(recipe: Path, first: dict[str, Any]) -> None:
    forced = run(recipe, recipe.parent / ".trtforge", "--until", "repository", "--force", "graph")
    assert column(forced, "status") == {**dict.fromkeys(OFFLINE, "cached"), "graph": "ran"}


def test_a_flipped_bit_of_the_graphs_weights_reaches_no_later_stage(recipe: Path, first: dict[str, Any]) -> None:
    weights = Path(column(first, "path")["graph"]) / "model.safetensors"
    status, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1000] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    healed = run(recipe, recipe.parent / ".trtforge", "--until", "repository", "--force", "build")
    gone = {"graph", "build", "parity", "repository"}
    assert {name for name, status in column(healed, "status").items() if status == "ran"} == gone
    assert {item["stage"] for item in healed["quarantined"]} == gone
    assert column(healed, "content_hash") == column(first, "content_hash")


def test_the_whole_run_publishes_a_bundle_that_verifies(recipe: Path, first: dict[str, Any], tmp_path: Path) -> None:
    result = run(recipe, recipe.parent / ".trtforge", "--until", "bundle")
    bundle = Path(result["link"])
    assert bundle.resolve() == Path(result["bundle"]).resolve()
    report = verify_bundle(bundle)
    assert report.ok, report.to_json()
    for name in (
        "engine/engine.json",
        "repository/tiny/config.pbtxt",
        "recipe.yaml",
        "report.html",
        "evidence/bench.json",
        "evidence/health.json",
    ):
        assert (bundle / name).is_file(), name
    recording = json.loads((bundle / "evidence/health.json").read_text())
    assert [len(probe["answer"]) for probe in recording["probes"]] == [4, 4]
    assert all(probe["seconds"] > 0 for probe in recording["probes"])
    times = json.loads((bundle / "manifest.json").read_text())["measurements"]["smoke"]
    assert times["load_seconds"] == recording["load_seconds"] > 0 and times["first_seconds"] > 0
    figures = json.loads((bundle / "report.json").read_text())
    assert figures["passed"] is True

    copy = tmp_path / "copy"
    shutil.copytree(bundle.resolve(), copy)
    assert verify_bundle(copy).ok, "a bundle can be moved"
    rng = random.Random(3)
    files = sorted(p for p in copy.rglob("*") if p.is_file() and p.stat().st_size)
    for path in rng.sample(files, 12):
        content = path.read_bytes()
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        assert not verify_bundle(copy, stamps=False).ok, path
        path.write_bytes(content)

    again = run(recipe, recipe.parent / ".trtforge", "--until", "bundle", fresh=True)
    assert set(column(again, "status").values()) == {"cached"}
    assert again["torch_imported"] is False

    measured = run(recipe, recipe.parent / ".trtforge", "--until", "bundle", "--force", "bench")
    assert column(measured, "status")["bundle"] == "ran", "new measurements refresh the bundle"
    assert column(measured, "content_hash") == column(result, "content_hash")
    assert verify_bundle(bundle).ok


@pytest.mark.parametrize(
    ("architecture", "format"),
    [("Qwen2ForCausalLM", "fp8"), ("Qwen3ForCausalLM", "int4_awq")],
)
def test_qwen_as_far_as_parity(tmp_path: Path, architecture: str, format: str) -> None:
    recipe = write_tiny_recipe(tmp_path, format=format, architecture=architecture, width=128)
    result = run(recipe, tmp_path / ".trtforge", "--until", "parity")
    gates = {gate["name"]: gate["passed"] for stage in result["stages"] for gate in stage["gates"]}
    assert gates == dict.fromkeys(gates, True) and {"audit", "top1_agreement"} <= gates.keys()
    engine = next(stage for stage in result["stages"] if stage["stage"] == "build")
    assert engine["status"] == "ran"
