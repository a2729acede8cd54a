"""Stages that a target leaves out, and the paths that a recipe gives TensorRT-LLM's build."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from builder.targets.torch import target as torch_target
from builder.targets.trtllm_engine.stage import timing_cache
from triton_repo.layouts.ifb_engine import with_window
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.catalogue import default_stages
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.build import BuildStage
from trtforge.pipeline.stages.common import draft_directory
from trtforge.pipeline.stages.targets import PerTarget, left_out
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Build, Recipe
from trtforge.tables import stack_table
from trtforge.targets import TARGETS, names


def recipe(target: str, **build: Any) -> Recipe:
    data = {"name": "r", "model": {"source": "somewhere"}, "build": {"target": target, **build}}
    return recipe_from_mapping(data).recipe


def test_only_real_targets_leave_out_real_stages() -> None:
    stages = {stage.name for stage in default_stages()}
    targets = set(typing.get_args(Build.model_fields["target"].annotation))
    assert targets == set(TARGETS)
    wrapped = {stage.name for stage in default_stages() if isinstance(stage, PerTarget)}
    for target in TARGETS.values():
        assert set(target.left_out) <= stages and set(target.left_out) <= wrapped
    for stage in wrapped:
        assert left_out(recipe("torch"), stage) is None


@pytest.mark.parametrize("target", names(lambda target: bool(target.left_out)))
def test_a_stage_that_is_left_out_says_so_and_has_no_gate(tmp_path: Path, target: str) -> None:
    asked = recipe(target)
    for stage in default_stages():
        if not isinstance(stage, PerTarget) or left_out(asked, stage.name) is None:
            continue
        section = stage.section(asked, tmp_path)
        out = tmp_path / stage.name
        out.mkdir()
        context = StageContext(asked, tmp_path, section, {}, out, tmp_path / "scratch", SilentProgress())
        result = stage.run(context)
        assert result.gates == [] and result.summary["not_run"]["reason"]
        assert (out / "not_run.json").is_file()
        assert section == {"not_run": result.summary["not_run"]}
        assert stage.disk_estimate(asked, {}) == 0


def test_the_layout_follows_the_target_unless_it_is_named() -> None:
    for target in TARGETS.values():
        if not target.layouts:
            continue
        layout = target.layouts[0]
        assert recipe(target.name).triton.layout == layout
        row = stack_table().newest(target.name)
        assert row is not None and layout in row.layouts
    assert recipe("torch").triton.layout == "native"
    data = {"name": "r", "model": {"source": "s"}, "build": {"target": "trtllm-llmapi"}}
    assert recipe_from_mapping({**data, "triton": {"layout": "native"}}).recipe.triton.layout == "native"
    decoupled = recipe_from_mapping({**data, "triton": {"decoupled": False}}).recipe.triton
    assert (decoupled.layout, decoupled.decoupled) == ("llmapi", False)


@pytest.mark.parametrize(
    ("window", "given", "expected"),
    [
        (0, {}, {}),
        (4096, {}, {}),
        (512, {}, {"max_attention_window_size": "512"}),
        (512, {"max_attention_window_size": "256"}, {"max_attention_window_size": "256"}),
    ],
)
def test_a_sliding_window_reaches_the_server(window: int, given: dict[str, str], expected: dict[str, str]) -> None:
    data = {"name": "r", "model": {"source": "s"}, "build": {"target": "trtllm-engine"}}
    asked = recipe_from_mapping({**data, "triton": {"parameters": given}}).recipe
    engine = {"sliding_window": window, "full_attention_layers": [], "limits": {"max_seq_len": 2048}}
    assert with_window(asked, engine).triton.parameters == expected


def test_windows_of_some_layers_reach_the_server() -> None:
    engine = {
        "sliding_window": 512,
        "full_attention_layers": [0, 2],
        "num_layers": 4,
        "limits": {"max_seq_len": 2048},
    }
    asked = recipe("trtllm-engine")
    assert with_window(asked, engine).triton.parameters == {"max_attention_window_size": "2048,512,2048,512"}


def test_the_timing_cache_lies_beside_the_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "kernels.cache").write_bytes(b"x")
    (tmp_path / "outside.cache").write_bytes(b"x")
    assert timing_cache(recipe("trtllm-engine"), folder) is None
    asked = recipe("trtllm-engine", trtllm={"timing_cache": "kernels.cache"})
    assert timing_cache(asked, folder) == folder / "kernels.cache"
    for name in ("missing.cache", "../outside.cache", str(tmp_path / "outside.cache"), "."):
        with pytest.raises(ForgeError) as caught:
            timing_cache(recipe("trtllm-engine", trtllm={"timing_cache": name}), folder)
        assert caught.value.code == "TF-BLD-045", name


def test_what_changes_the_engine_changes_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.cache").write_bytes(b"one")
    asked = recipe("trtllm-engine", trtllm={"timing_cache": "a.cache"})
    before = BuildStage().section(asked, tmp_path)
    assert before["stack"]["tensorrt_llm"] == "1.2.1" and before["not_compiled"]
    (tmp_path / "a.cache").write_bytes(b"two")
    assert BuildStage().section(asked, tmp_path) != before
    assert set(BuildStage().section(recipe("torch"), tmp_path)) == {"name", "build", "torch"}


def test_a_draft_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    data = {"name": "r", "model": {"source": "s"}, "build": {"target": "trtllm-llmapi"}}
    for source, expected in (("draft", tmp_path / "draft"), ("hf:org/name", None)):
        spoken = {"method": "eagle3", "draft": source, "max_draft_len": 3}
        asked = recipe_from_mapping({**data, "speculation": spoken}).recipe
        assert draft_directory(asked, tmp_path) == expected


@pytest.mark.parametrize("name", ["ENGINE_VERSION", "OPS_VERSION", "ABI_VERSION"])
def test_another_contract_builds_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """An engine of an older contract is refused by the runtime, so it must not be taken from the cache."""
    before = BuildStage().section(recipe("torch"), tmp_path)
    monkeypatch.setattr(torch_target, name, getattr(torch_target, name) + 1)
    assert BuildStage().section(recipe("torch"), tmp_path) != before
