"""Recipes for TensorRT-LLM from checkpoint to bundle, on a machine that can compile nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builder.targets.trtllm.deshard import deshard
from tests.builder.targets.trtllm.fake_trtllm import install
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_recipe import write_tiny_recipe
from tests.trtforge.drafting import checkpoints
from triton_repo.lint.run import lint_repository
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.statements import RECORD
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.pipeline.explain import explain
from trtforge.pipeline.published import verify_published
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store

pytestmark = pytest.mark.e2e
LEFT_OUT = ["parity", "smoke", "bench"]  # the graph is no input of a bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    base = write_tiny_recipe(folder)
    for target, parallel in (("trtllm-engine", {"tp": 2}), ("trtllm-llmapi", {})):
        recipe: dict[str, Any] = yaml.safe_load(base.read_text())
        recipe["name"] = target
        recipe["build"] |= {"target": target, "parallel": parallel}
        (folder / f"{target}.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.mark.parametrize("target", ["trtllm-engine", "trtllm-llmapi"])
def test_a_bundle_says_what_nobody_has_looked_at(folder: Path, target: str) -> None:
    store = Store(folder / ".trtforge", durable=False)
    loaded = load_recipe(folder / f"{target}.yaml")
    result = default_pipeline(store).run(loaded, output=folder / "bundles", capture_output=True)
    assert result.bundle is not None
    bundle = result.bundle
    missing = json.loads((bundle / "evidence" / "not_run.json").read_text())
    assert sorted(missing) == sorted(LEFT_OUT)
    report = json.loads((bundle / "report.json").read_text())
    assert "gates were not run: top1_agreement, engine_kl, engine_answers, engine_sanity, smoke" in report["verdict"]
    assert report["passed"] is None
    shown = (bundle / "report.md").read_text()
    assert "**INCOMPLETE**" in shown and "PASSED" not in shown
    assert "Not run" in shown and "top1_agreement" in shown and "| Speed" not in shown
    assert not {gate["name"] for gate in report["data"]["gates"]} & {"top1_agreement", "engine_kl"}
    for name in ("parity.json", "smoke.json", "bench.json"):
        assert not (bundle / "evidence" / name).exists()
    engine = json.loads((bundle / "engine" / "engine.json").read_text())
    assert engine["compiled"] is False and engine["not_compiled"]
    assert result.artifact("bundle").summary["compiled"] is False
    scripts = {"trtllm-engine": ["mpirun.sh", "slurm.sh"], "trtllm-llmapi": ["server.sh"]}[target]
    assert sorted(path.name for path in (bundle / "launch").iterdir()) == sorted([*scripts, "plan.json"])
    assert all(f"launch/{name}" in shown for name in scripts)
    # the stack of the LLM API has no container with Triton: its report starts TensorRT-LLM's own server
    triton = target == "trtllm-engine"
    assert ("tritonserver --model-repository=repository" in shown) == triton
    assert ("mpirun … 2 servers" in shown) == triton
    assert ({True: "tensorrt_llm_bls/generate", False: "/v1/completions -H 'Content-Type"}[triton]) in shown
    commands = [line for line in shown.splitlines() if line.startswith(("docker run", "sh ", "cd "))]
    assert triton or " trtllm-serve checkpoint " in commands[0]
    container = [line for line in shown.splitlines() if line.startswith("docker run")]
    started = {"trtllm-engine": "sh /bundle/launch/mpirun.sh", "trtllm-llmapi": " trtllm-serve checkpoint "}[target]
    assert len(container) == 1 and started in container[0]
    verified = verify_published(bundle)
    assert verified.ok, verified.to_json()
    assert {f.code for f in verified.findings} <= {"TF-BND-031", "TF-BND-032", "TF-BND-033"}
    assert "rounded again for TensorRT-LLM" in shown and "before they were evaluated" in shown
    models = sorted(path.name for path in (bundle / "repository").iterdir())
    if target == "trtllm-engine":
        assert len(deshard(bundle / "engine" / "checkpoint")) == 3 + 2 * 9
        assert models == ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
        config = (bundle / "repository" / "tensorrt_llm" / "config.pbtxt").read_text()
        assert '"engine/trtllm"' in config and "${" not in config
        assert engine["conversion"]["requantized"]["weights"] == 0
        assert {gate["name"]: gate["passed"] for gate in report["data"]["gates"]}["deployed_weights"] is True
    else:
        assert models == ["tensorrt_llm"]
        model = yaml.safe_load((bundle / "repository" / "tensorrt_llm" / "1" / "model.yaml").read_text())
        place = bundle / "repository" / "tensorrt_llm" / model["model"]
        assert (place / "hf_quant_config.json").is_file()
        without = {k: v for k, v in model.items() if k not in ("model", "triton_config")}
        assert without == {k: v for k, v in engine["llm_args"].items() if k != "model"}
    again = explain(default_pipeline(store), loaded)
    assert {row.status for row in again} == {"cached"}


def test_a_bundle_of_the_llm_api_holds_a_drafter_that_its_tensorrt_llm_loads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "WIDTH", 64)
    monkeypatch.setattr(checkpoints, "VOCAB", 512)
    checkpoints.write(folder / "head", checkpoints.Spec("speculators", taps=(0, 1), target_width=64))
    recipe = yaml.safe_load((folder / "trtllm-llmapi.yaml").read_text())
    recipe["name"] = "head"
    lengths = {2: 4, 4: 2}
    recipe["speculation"] = {"method": "eagle3", "draft": "head", "max_draft_len": 4, "draft_len_schedule": lengths}
    (folder / "head.yaml").write_text(yaml.safe_dump(recipe))
    store = Store(folder / ".trtforge", durable=False)
    result = default_pipeline(store).run(load_recipe(folder / "head.yaml"), output=tmp_path, capture_output=True)
    bundle = result.bundle
    assert bundle is not None and verify_published(bundle, stamps=False).ok
    assert result.artifact("build").summary["drafter"] == {
        "from": "speculators",
        "dialect": "tensorrt-llm",
        "converted": True,
        "taps": [0, 1],
        "rope_theta": 500000.0,
        "lost": [],
        "copied_from_target": [],
        "config_keys_left_out": [],
    }
    model = yaml.safe_load((bundle / "repository" / "tensorrt_llm" / "1" / "model.yaml").read_text())
    config = model["speculative_config"]
    assert config == {
        "decoding_type": "Eagle3",
        "max_draft_len": 4,
        "speculative_model": "../../engine/draft",
        "eagle3_layers_to_capture": [0, 1],
        "draft_len_schedule": lengths,
    }
    options = yaml.safe_load((bundle / "engine" / "extra-llm-api-options.yaml").read_text())["speculative_config"]
    assert options == {**config, "speculative_model": "draft"}
    drafter = inspect_folder(bundle / "repository" / "tensorrt_llm" / config["speculative_model"])
    assert drafter.dialect is not None and drafter.dialect.name == "tensorrt-llm" and drafter.errors == []
    missing = json.loads((bundle / "evidence" / "not_run.json").read_text())["speculation"]
    assert missing["gates"] == ["speculation_greedy", "speculation_distribution", "speculation_speedup"]
    made = json.loads((bundle / "engine" / "draft" / RECORD).read_text())
    assert made["from"]["dialect"] == "speculators" and made["target"]["tokenizer"]["sha256"]
    faults = lint_repository(bundle / "repository").findings
    assert [item for item in faults if item.severity == "error"] == []


def test_a_bundle_with_a_draft_model_has_two_engines(folder: Path, tmp_path: Path) -> None:
    recipe = yaml.safe_load((folder / "trtllm-engine.yaml").read_text())
    recipe["name"] = "drafted"
    recipe["build"] |= {"parallel": {}, "kv_cache": {"memory": "8MiB"}, "trtllm": {"kv_reuse": True}}
    recipe["speculation"] = {"method": "draft_target", "draft": "draft", "max_draft_len": 4}
    (folder / "drafted.yaml").write_text(yaml.safe_dump(recipe))
    store = Store(folder / ".trtforge", durable=False)
    write_tiny_llama(folder / "draft", layers=1, seed=7)  # the model's vocabulary, half its layers
    result = default_pipeline(store).run(load_recipe(folder / "drafted.yaml"), output=tmp_path, capture_output=True)
    bundle = result.bundle
    assert bundle is not None
    shown = (bundle / "report.md").read_text()
    assert "sh BUNDLE/engine/container.sh" in shown and "sh BUNDLE/engine/draft/container.sh" in shown
    drafts = (bundle / "repository" / "tensorrt_llm_draft" / "config.pbtxt").read_text()
    assert '"engine/draft/trtllm"' in drafts and "max_tokens_in_paged_kv_cache" in drafts
    bls = (bundle / "repository" / "tensorrt_llm_bls" / "config.pbtxt").read_text()
    assert '"tensorrt_llm_draft"' in bls
    assert verify_published(bundle, stamps=False).ok
    environment = {**os.environ, **install(tmp_path / "machine")}
    for name in ("build.sh", "draft/build.sh"):
        subprocess.run(["sh", str(bundle / "engine" / name)], env=environment, capture_output=True, check=True)
    later = verify_published(bundle, stamps=False)
    assert later.ok, later.to_json()
    assert sorted((item.code, item.path) for item in later.findings) == [
        ("TF-BND-030", "engine/draft/trtllm"),
        ("TF-BND-030", "engine/trtllm"),
    ]
    (bundle / "engine" / "draft" / "trtllm" / "rank0.engine").write_bytes(b"")
    faults = [(item.code, item.path) for item in verify_published(bundle, stamps=False).findings]
    assert ("TF-BND-035", "engine/draft/trtllm") in faults
