"""Two plans of one engine: the target with its taps, and the head that drafts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from safetensors.torch import load_file

from builder.graphs.build import build_graph
from builder.graphs.drafts import build_draft, taps_of
from builder.speculation import engine_record
from builder.targets import engine_info
from builder.targets.tensorrt.lowering import lower
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes, profile_shapes
from builder.targets.tensorrt.versions import missing_operators
from tests.runtime import draft_support as support
from tests.support.engines import build_engine
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.drafting.record import read_speculation
from trtforge.recipe.schema import Build, KvCache, Limits
from trtforge.targets.tensorrt import TensorRt

SPEC = Spec("speculators", taps=(1, 5, 8), fc_norm=True, norm_before_residual=True, norm_output=True, seed=8)
LIMITS = Limits(max_batch_size=8, max_num_tokens=64, max_seq_len=256)
BUILD = Build(target="tensorrt", limits=LIMITS, kv_cache=KvCache(memory="16MiB"))
Graphs = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    made: dict[str, tuple[Path, Any]] = {}

    def graphs(**keys: Any) -> tuple[Path, Any]:
        if str(keys) not in made:
            root = tmp_path_factory.mktemp("drafted")
            target = support.write_target(root / "target", SPEC)
            head = support.write_head(root / "head", target, SPEC)
            asked = support.speculation(**keys)
            tree = asked.choices is not None
            build_graph(target, root / "graph", hidden_states=taps_of(asked, head, target), tree_mask=tree)
            build_draft(asked, head, target, root / "graph", dtype="bfloat16", block_size=32)
            made[str(keys)] = root / "graph", engine_record(asked, root / "graph")
        return made[str(keys)]

    return graphs


@pytest.mark.parametrize("strip", [False, True])
def test_both_plans_and_what_serving_reads(gpu_machine: Any, drafted: Graphs, tmp_path: Path, strip: bool) -> None:
    graph, record = drafted()
    build = BUILD.model_copy(update={"tensorrt": TensorRt(strip_weights=strip)})
    engine = build_engine(graph, tmp_path / "e", name="tiny", build=build, speculation=record)
    own = json.loads((tmp_path / "e" / "draft" / "engine.json").read_text())
    assert read_speculation(engine) == record
    for kind in (engine, own):
        assert kind["target"] == "tensorrt" and kind["tensorrt"]["plan"] == "engine.plan"
        assert kind["tensorrt"]["gpu_architecture"] == "sm_90"
    assert own["kv_cache"]["num_blocks"] == engine["kv_cache"]["num_blocks"]
    plan = engine["memory_plan"]
    parts = engine["kv_cache"]["bytes_per_block"] + own["kv_cache"]["bytes_per_block"]
    assert plan["bytes_per_block"] == parts and engine["kv_cache"]["num_blocks"] == 2**24 // parts
    assert {"hidden_states_2", "hidden_states_6", "hidden_states_9"} <= set(engine["tensorrt"]["outputs"])
    assert {"logits", "states"} <= set(own["tensorrt"]["outputs"])
    # 4 draft tokens and the root of 8 requests, or what a step scores
    assert engine["tensorrt"]["sizes"]["rows"] == 64
    stored = load_file(tmp_path / "e" / "draft" / "model.safetensors")
    assert (set(stored) == {"d2t"}) is not strip, "the map; the head's weights are the plan's"
    hashes = engine["sha256"]
    assert {"draft/engine.json", "draft/engine.plan", "draft/model.safetensors"} <= set(hashes)
    info = engine_info(tmp_path / "e")
    assert info["draft_engine"]["drafter"]["dialect"] == "speculators"


def test_every_node_of_the_head_is_one_that_the_parser_has(drafted: Graphs) -> None:
    graph, _ = drafted(max_draft_len=None, choices=[[0], [0, 0]])
    for version in ("10.14.1", "10.16.1", "11.4.0"):
        missing = missing_operators(version)
        network = lower(graph / "draft", missing)
        model = onnx.load_from_string(network.model)
        assert not {node.op_type for node in model.graph.node} & missing
        assert [plugin["fields"]["has_tree_mask"] for plugin in network.plugins] == [1]
        described = {value["name"]: value for value in network.inputs}
        assert described["joined"] == {"name": "joined", "type": "BOOL", "shape": [1, 1]}
        assert described["taps"]["shape"] == ["T", 48] and described["tree_mask"]["type"] == "BOOL"
        sizes = Sizes.of(LIMITS, block_size=32, num_blocks=50, tree=True)
        shapes = {profile: profile_shapes(network.inputs, sizes, profile) for profile in (DECODE, MIXED)}
        assert shapes[DECODE]["feedback"] == ((1, 16), (8, 16), (8, 16))
        assert shapes[MIXED]["taps"] == ((1, 48), (64, 48), (64, 48))
        assert "joined" not in shapes[MIXED], "a fixed shape needs no range"


def test_rows_of_logits_hold_a_full_batch_of_drafts() -> None:
    limits = Limits(max_batch_size=64, max_num_tokens=2048, max_seq_len=256)
    assert Sizes.of(limits, block_size=32, num_blocks=9).rows == 256
    assert Sizes.of(limits, block_size=32, num_blocks=9, draft_tokens=7).rows == 64 * 8
    assert Sizes.of(limits, block_size=32, num_blocks=9, draft_tokens=60).rows == 2048


def test_the_lowered_head_builds(drafted: Graphs, tmp_path: Path) -> None:
    """By the real parser and builder of TensorRT for RTX, which take the same ONNX."""
    pytest.importorskip("tensorrt_rtx", reason="pip install 'trtforge[rtx]'")
    root = Path(__file__).resolve().parents[4]
    probe, missing = Path(__file__).with_name("real_builder.py"), ",".join(sorted(missing_operators("10.14.1")))
    graph, _ = drafted()
    done = subprocess.run(
        [sys.executable, str(probe), str(graph / "draft"), str(tmp_path), "SM89", missing],
        capture_output=True, text=True, timeout=300, check=False, cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "failed" not in said, said
    assert said["layers"] > 0 and said["plan_bytes"] == (tmp_path / "engine.plan").stat().st_size
