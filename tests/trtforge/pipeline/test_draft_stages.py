"""A recipe's draft is part of the stages' keys and reaches graph and engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.executors.weight_check import WeightCheck
from runtime.offline import Engine
from tests.runtime import draft_support as support
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.drafting.record import read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages import parity
from trtforge.pipeline.stages.build import BuildStage
from trtforge.pipeline.stages.graph import GraphStage
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact

SPEC = Spec("specforge", taps=(1, 5, 8), own_embedding=True, seed=9)


def recipe(**speculation: object) -> Recipe:
    data = {
        "name": "r",
        "model": {"source": "target", "dtype": "float32"},
        "build": {
            "limits": {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 128},
            "kv_cache": {"block_size": 16, "memory": "8MiB"},
        },
        "speculation": speculation,
    }
    return recipe_from_mapping(data).recipe


EAGLE = {"method": "eagle3", "draft": "head", "max_draft_len": 4}


def test_only_recipes_that_draft_have_drafts_in_their_keys(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    graph, build = GraphStage(), BuildStage()
    plain = graph.section(recipe(method="none"), tmp_path)
    assert graph.section(recipe(method="ngram", max_draft_len=4), tmp_path) == plain
    before = graph.section(recipe(**EAGLE), tmp_path)
    assert set(before["draft"]) == {"config.json", "model.safetensors"} and before["tree"] is False
    tree = recipe(method="eagle3", draft="head", choices=[[0], [1]])
    assert graph.section(tree, tmp_path)["tree"] is True
    # what is not the head's does not count; what is does
    (head / "README.md").write_text("nothing")
    assert graph.section(recipe(**EAGLE), tmp_path) == before
    (head / "config.json").write_text((head / "config.json").read_text() + "\n")
    assert graph.section(recipe(**EAGLE), tmp_path) != before
    assert "speculation" not in build.section(recipe(method="none"), tmp_path)
    fixed = build.section(recipe(**EAGLE, adaptive=False), tmp_path)
    assert fixed["speculation"] != build.section(recipe(**EAGLE), tmp_path)["speculation"]


def test_a_draft_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        GraphStage().section(recipe(**EAGLE), tmp_path)
    assert caught.value.code == "TF-BLD-122" and "head" in caught.value.message


@pytest.mark.parametrize("tree", [False, True])
def test_graph_and_engine_carry_the_draft(tmp_path: Path, tree: bool) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    support.write_head(tmp_path / "head", target, SPEC)
    asked = recipe(**(EAGLE if not tree else {"method": "eagle3", "draft": "head", "choices": [[0], [1], [0, 0]]}))
    folders = {}
    inputs = {"quantize": Artifact("quantize", "k", target, {})}
    for stage in (GraphStage(), BuildStage()):
        out = tmp_path / f"out-{stage.name}"
        out.mkdir()
        section = stage.section(asked, tmp_path)
        context = StageContext(asked, tmp_path, section, inputs, out, tmp_path / "scratch", SilentProgress())
        result = stage.run(context)
        inputs[stage.name] = Artifact(stage.name, "k", out, {"summary": result.summary})
        folders[stage.name] = out
    engine = support.config_of(folders["build"])
    record = read_speculation(engine)
    assert record is not None and record.taps == (2, 6, 9)
    assert (record.tree is not None) is tree
    assert (folders["build"] / "draft" / "engine.json").is_file()
    assert inputs["build"].summary["speculation"] == engine["speculation"]


def test_parity_reads_the_weights_of_the_draft_back_too(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    built = support.build(tmp_path, target, head, support.speculation(adaptive=False))
    with Engine.load(built) as engine:
        found = parity._check_weights(engine, SilentProgress())
    assert found is not None and found.changed == 0
    shapes = [row["shape"] for folder in (built, built / "draft") for row in support.config_of(folder)["linears"]]
    assert found.weights == sum(rows * columns for rows, columns in shapes)
    worse = WeightCheck(10, 1, 0.5, {"fc": {"changed": 1}})
    assert WeightCheck(5).with_draft(worse) == WeightCheck(15, 1, 0.5, {"draft: fc": {"changed": 1}})
