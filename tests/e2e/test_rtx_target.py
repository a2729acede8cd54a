"""A recipe for RTX engines from checkpoint to bundle: compiled for real, the graph checked, the rest not run."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.pipeline.explain import explain
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed: pip install 'trtforge[rtx]'"
    ),
]


def test_from_checkpoint_to_bundle(tmp_path: Path) -> None:
    base = write_tiny_recipe(tmp_path, format="fp8", kv_cache="none")
    recipe = yaml.safe_load(base.read_text())
    recipe["build"] |= {"target": "tensorrt-rtx", "architectures": ["sm_89", "sm_120"]}
    base.write_text(yaml.safe_dump(recipe))
    loaded = load_recipe(base)
    store = Store(tmp_path / ".trtforge", durable=False)
    result = default_pipeline(store).run(loaded, output=tmp_path / "bundles", capture_output=True)
    assert result.bundle is not None
    bundle = result.bundle

    missing = json.loads((bundle / "evidence" / "not_run.json").read_text())
    assert sorted(missing) == ["bench", "repository", "smoke"]
    assert not (bundle / "repository").exists()
    gates = {
        gate["name"]: gate for stage in result.outcomes if stage.artifact for gate in stage.artifact.manifest["gates"]
    }
    assert gates["graph_top1_agreement"]["passed"] and gates["graph_kl"]["passed"]
    assert not {"top1_agreement", "engine_kl", "smoke"} & set(gates), "nobody has run the engine"
    parity = json.loads((bundle / "evidence" / "parity.json").read_text())
    assert parity["ran"].startswith("the engine's graph") and parity["activations"] == "float32"

    engine = json.loads((bundle / "engine" / "engine.json").read_text())
    assert engine["kind"] == "RTX engine" and engine["architectures"] == ["sm_89", "sm_120"]
    for item in engine["engines"]:
        data = (bundle / "engine" / item["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == item["sha256"]
    report = (bundle / "report.md").read_text()
    assert "never in TensorRT or TensorRT-LLM" in report and "in float32 under ONNX Runtime" in report
    assert "**INCOMPLETE**" in report and "top1_agreement" in report and "trtforge serve" not in report

    verified = verify_bundle(bundle)
    # a machine without such a GPU is told so; everything else is in order
    assert {f.code for f in verified.findings} <= {"TF-BND-027"}, verified.to_json()
    assert {row.status for row in explain(default_pipeline(store), loaded)} == {"cached"}
