"""``trtforge quantize sensitivity`` on a tiny checkpoint: measured, resumed, cached, and a recipe for ``check``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.perplexity import plan_windows
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.cli.main import invoke


@pytest.fixture
def run(run: Any) -> Any:
    return partial(run, "quantize", "sensitivity")


def _measured(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / ".trtforge").rglob("sensitivity.json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    page = (path.parent / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "http-equiv" not in page and document["worst"][0].removeprefix("model.") in page
    return document


def _counted(monkeypatch: pytest.MonkeyPatch, interrupted: int = 0) -> list[int]:
    """The number of windows that go through a model from now on; the one of number ``interrupted`` meets Ctrl-C."""
    from quantize.sensitivity import PartlyQuantized

    logits, calls = PartlyQuantized.logits, [0]

    def counted(self: Any, ids: Any, modules: Any = ()) -> Any:
        calls[0] += 1
        if calls[0] == interrupted:
            raise KeyboardInterrupt
        return logits(self, ids, modules)

    monkeypatch.setattr(PartlyQuantized, "logits", counted)
    return calls


def test_measured_resumed_and_cached(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = str(write_tiny_recipe(tmp_path, format="fp8", kv_cache="none"))
    calls = _counted(monkeypatch, interrupted=7)
    options = ["--tokens", "192"]
    assert run(recipe, *options)[0] == 130
    code, out, err = run(recipe, *options)
    assert code == 0, err
    document = _measured(tmp_path)
    assert len(document["groups"]) == 8 and document["spared"] is None
    # the unquantized model, eight groups, and all together; the call that was interrupted is the only one made twice
    assert calls[0] - 1 == 10 * len(plan_windows(192, 128, 64))
    assert "The worst of 8 groups" in out and "report.html" in out
    for group in document["groups"]:
        assert 0 <= group["kl"]["low"] <= group["kl"]["value"] <= group["kl"]["high"]
        assert group["saved_bytes"] > 0
    worst = [next(g for g in document["groups"] if g["name"] == name)["kl"]["value"] for name in document["worst"]]
    assert worst == sorted(worst, reverse=True) and worst[0] > 0
    before = calls[0]
    assert run(recipe, *options)[0] == 0 and calls[0] == before


def test_the_recipe_spares_the_worst_and_check_takes_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = str(write_tiny_recipe(tmp_path, format="nvfp4", kv_cache="none"))
    assert run(recipe, "--tokens", "192")[0] == 0
    whole = _measured(tmp_path)["together"]["high"]
    calls = _counted(monkeypatch)
    code, out, err = run(recipe, "--tokens", "192", "--max-kl", str(whole / 2), "-o", "spared.yaml")
    assert code == 0, err
    # the halving of eight groups measures three or four sets; the groups alone are there
    assert 0 < calls[0] <= 4 * len(plan_windows(192, 128, 64))
    assert "quantize.exclude: [lm_head, " in out
    written = yaml.safe_load((tmp_path / "spared.yaml").read_text(encoding="utf-8"))
    assert set(written["quantize"]["exclude"]) > {"lm_head"}
    assert invoke(["check", "spared.yaml", "--quiet"]) == 0
    made = [json.loads(p.read_text(encoding="utf-8")) for p in (tmp_path / ".trtforge").rglob("sensitivity.json")]
    (spared,) = (item["spared"] for item in made if item["spared"])
    assert spared["kl"]["high"] <= whole / 2
    assert 0 < spared["bytes"] < made[0]["saved_bytes"]


def test_what_has_no_answer_is_refused(run: Any, tmp_path: Path) -> None:
    recipe = str(write_tiny_recipe(tmp_path, format="fp8", kv_cache="none"))
    assert "TF-CLI-062" in run(recipe, "-o", "x.yaml")[2]
    assert "TF-CLI-062" in run(recipe, "--max-kl", "0")[2]
    code, _, err = run(recipe, "--set", "quantize.format=none")
    assert code == 2 and "TF-QNT-016" in err
