"""A waiver and its justification stay with what was built under it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import evals.report
from trtforge.pipeline.stages import bundle, bundle_report
from trtforge.recipe.load import load_recipe, recipe_from_mapping

WAIVED = {"TF-K22-002": "measured: this client sends bursts", "TF-K3-003": "patched kernels"}


def test_the_bundles_summary_and_recipe_carry_the_justifications(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*arguments: Any, **named: Any) -> None:
        return None

    for module, name in ((bundle, "copy_artifact"), (bundle, "copy_artifact_file"), (evals.report, "write_report")):
        monkeypatch.setattr(module, name, nothing)
    monkeypatch.setattr(bundle_report, "build_report", nothing)
    monkeypatch.setattr(bundle, "summarize", lambda inputs: {"model": "m"})
    monkeypatch.setattr(bundle, "make_stamps", lambda context, engine: {})
    monkeypatch.setattr(bundle, "size_of", lambda artifact: 0)
    out = tmp_path / "out"
    (out / bundle.ENGINE_DIR).mkdir(parents=True)
    (out / bundle.ENGINE_DIR / "engine.json").write_text("{}")
    artifact = SimpleNamespace(
        path=out,
        key="k",
        manifest={"content_hash": "h", "ingredients": {"code_version": "1"}, "tools": {}},
        summary={"audit": {}},
    )
    context = SimpleNamespace(
        inputs=dict.fromkeys(bundle.BundleStage.needs, artifact),
        out=out,
        progress=SimpleNamespace(start=nothing, advance=nothing),
        recipe=recipe_from_mapping({"name": "x", "model": {"source": "m"}, "waive": WAIVED}).recipe,
    )
    result = bundle.BundleStage().run(context)
    assert result.summary["waived"] == WAIVED
    json.dumps(result.summary)
    assert load_recipe(out / bundle.RECIPE_FILE).recipe.waive == WAIVED
