"""The engine that drafts beside its target: files, memory, hashes, and drafts that cannot be carried."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from safetensors.torch import load_file, save_file

from builder.draft_files import draft_files
from builder.graphs.build import build_graph
from builder.graphs.drafts import build_draft
from builder.graphs.info import GraphInfo
from builder.memory import activation_bytes
from builder.speculation import engine_record
from runtime.executors.draft_executor import open_draft
from runtime.executors.engine_dir import read_engine
from runtime.executors.torch_executor import TorchExecutor
from tests.runtime import draft_support as support
from tests.runtime.executor_support import blocks_of, make_batch
from tests.support.engines import build_engine
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.drafting.record import read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, KvCache

SPEC = Spec("modelopt", taps=(2, 7), own_head=False, mapped=False, seed=5)


def test_the_engine_of_a_head_beside_its_target(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    engine = support.build(tmp_path, target, head, support.speculation())
    record, own = support.config_of(engine), support.config_of(engine / "draft")
    speculation = read_speculation(record)
    assert speculation is not None and speculation.taps == (3, 8) and speculation.draft == "draft"
    assert speculation.drafter["dialect"] == "modelopt" and speculation.drafter["embedding"] == "target's"
    assert own["limits"] == record["limits"] and own["name"] == "tiny-draft"
    cache, drafted, plan = record["kv_cache"], own["kv_cache"], record["memory_plan"]
    assert (drafted["num_blocks"], drafted["block_size"]) == (cache["num_blocks"], cache["block_size"])
    # 12 layers of the target and one of the head: 2 heads of 64 values, keys and values, 16 slots, 4 bytes
    assert cache["bytes_per_block"] == 12 * 2 * 2 * 64 * 16 * 4
    assert drafted["bytes_per_block"] == 1 * 2 * 2 * 64 * 16 * 4
    assert plan["bytes_per_block"] == cache["bytes_per_block"] + drafted["bytes_per_block"]
    assert cache["num_blocks"] == 2**23 // plan["bytes_per_block"]
    assert plan["draft"]["weights_bytes"] > 0
    assert plan["total_bytes"] == plan["weights_bytes"] + plan["activation_bytes"] + plan["kv_pool_bytes"]
    # tables that the head has not are its target's
    stored, tables = load_file(engine / "draft" / "model.safetensors"), load_file(target / "model.safetensors")
    assert stored["embed_tokens.weight"].equal(tables["model.embed_tokens.weight"])
    assert stored["lm_head.weight"].equal(tables["lm_head.weight"])
    model = onnx.load(engine / "draft" / "model.onnx", load_external_data=False)
    assert {"taps", "feedback", "joined"} <= {value.name for value in model.graph.input}
    assert "tree_mask" not in {value.name for value in model.graph.input}


def test_the_hashes_of_an_engine_cover_its_draft(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    engine = support.build(tmp_path, target, head, support.speculation())
    hashes = support.config_of(engine)["sha256"]
    files = {str(path.relative_to(engine)): path for path in engine.rglob("*") if path.is_file()}
    assert set(hashes) == set(files) - {"engine.json"}
    for name, digest in hashes.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    found = []
    for name in ("one", "other"):
        engine = support.build(tmp_path / name, target, head, support.speculation())
        found.append({str(p.relative_to(engine)): p.read_bytes() for p in engine.rglob("*") if p.is_file()})
    assert found[0] == found[1]


def test_logits_of_drafts_count_as_activations(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    build_graph(target, tmp_path / "graph", block_size=16)
    info = GraphInfo.read(tmp_path / "graph")
    limits = support.LIMITS
    more = activation_bytes(info, limits, 4) - activation_bytes(info, limits)
    assert more == 4 * 4 * limits.max_batch_size * info.vocab_size
    assert activation_bytes(info, limits, 1000) == activation_bytes(info, limits, 500)  # a step has no more rows
    head = replace(info, drafter={"draft_vocab_size": 7})  # a head over a vocabulary of its own has fewer columns
    fewer = activation_bytes(info, limits) - activation_bytes(head, limits)
    assert fewer == 4 * limits.max_batch_size * (info.vocab_size - 7)


def test_a_whole_model_drafts_as_its_target_runs(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "target", vocab=300, layers=3)
    small = write_tiny_llama(tmp_path / "small", vocab=300, layers=1, width=32, seed=4)
    (small / "modeling_evil.py").write_text("raise SystemExit")
    asked = support.speculation(method="draft_target", draft="small")
    graph = tmp_path / "graph"
    build_graph(target, graph, block_size=16)
    build_draft(asked, small, target, graph, dtype="bfloat16", block_size=16)
    recipe = Build(limits=support.LIMITS, kv_cache=KvCache(block_size=16, memory="4MiB"))
    record = engine_record(asked, graph)
    assert record is not None and record.taps == () and record.drafter["kind"] == "model"
    build_engine(graph, tmp_path / "engine", name="tiny", build=recipe, speculation=record)
    assert not (tmp_path / "engine" / "draft" / "modeling_evil.py").exists()
    info = read_engine(tmp_path / "engine")
    executor = open_draft(tmp_path / "engine", info, num_blocks=100)
    assert isinstance(executor, TorchExecutor) and executor.num_blocks == 100
    step = make_batch([(range(5, 30), 0, [b % 100 for b in blocks_of(0)])])
    # the same model as an engine of its own
    build_graph(small, tmp_path / "alone", dtype="bfloat16", block_size=16)
    build_engine(tmp_path / "alone", tmp_path / "own", name="small", build=recipe)
    assert executor.execute(step).equal(TorchExecutor(tmp_path / "own", num_blocks=100).execute(step))


def test_graphs_of_another_target_are_refused(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    asked, graph = support.speculation(), tmp_path / "graph"
    build_graph(target, graph, block_size=16, hidden_states=(3, 8))
    build_draft(asked, head, target, graph, dtype="bfloat16", block_size=16)
    record = engine_record(asked, graph)
    recipe = Build(limits=support.LIMITS, kv_cache=KvCache(block_size=16, memory="8MiB"))
    build_engine(graph, tmp_path / "fits", name="tiny", build=recipe, speculation=record)
    found = {}
    for name, options in {"taps": {"hidden_states": (3, 9)}, "tree_mask": {"tree_mask": True}}.items():
        build_graph(target, graph, block_size=16, **{"hidden_states": (3, 8), **options})
        with pytest.raises(ForgeError) as caught:
            build_engine(graph, tmp_path / name, name="tiny", build=recipe, speculation=record)
        assert caught.value.code == "TF-BLD-123"
        found[name] = set(caught.value.numbers)
    assert found == {"taps": {"taps"}, "tree_mask": {"tree_mask"}}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_no_number_is_refused(value: float, dtype: str, tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    tensors = load_file(head / "model.safetensors")
    tensors["fc.weight"][3, 5] = value
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(ForgeError) as caught:
        build_draft(support.speculation(), head, target, tmp_path / "graph", dtype=dtype, block_size=16)
    assert caught.value.code == "TF-GRF-022" and caught.value.numbers["values"] == 1 and caught.value.remedies


def test_a_value_that_the_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    tensors = load_file(head / "model.safetensors")
    tensors["fc.weight"][3, 5] = 1e6
    save_file(tensors, head / "model.safetensors")
    for dtype in ("bfloat16", "float32"):
        build_draft(support.speculation(), head, target, tmp_path / dtype, dtype=dtype, block_size=16)
    with pytest.raises(ForgeError) as caught:
        build_draft(support.speculation(), head, target, tmp_path / "half", dtype="float16", block_size=16)
    assert caught.value.code == "TF-GRF-021" and caught.value.numbers["largest"] == 1e6


def test_links_out_of_a_drafts_folder_are_refused(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)
    shutil.move(head / "model.safetensors", tmp_path / "elsewhere.safetensors")
    (head / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ForgeError) as caught:
        build_draft(support.speculation(), head, target, tmp_path / "graph", dtype="float32", block_size=16)
    assert caught.value.code == "TF-GRF-020" and "cp -rL" in caught.value.remedies[0]
    (head / "model.safetensors").unlink()
    shutil.move(tmp_path / "elsewhere.safetensors", head / "stored.safetensors")
    (head / "model.safetensors").symlink_to("stored.safetensors")
    assert {path.name for path in draft_files(head)} >= {"config.json", "model.safetensors"}
    (head / "model.safetensors").unlink()
    os.mkfifo(head / "model.safetensors")
    with pytest.raises(ForgeError):
        draft_files(head)


def test_heads_that_the_graph_cannot_hold_are_refused(tmp_path: Path) -> None:
    target = support.write_target(tmp_path / "target", SPEC)
    head = support.write_head(tmp_path / "head", target, SPEC)

    def code(**config: object) -> str:
        changed = {**json.loads((head / "config.json").read_text()), **config}
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(head, folder)
        (folder / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ForgeError) as caught:
            build_draft(support.speculation(), folder, target, tmp_path / "graph", dtype="float32", block_size=16)
        return caught.value.code

    assert code(rope_scaling={"type": "dynamic", "factor": 2.0}).startswith(("TF-GRF-003", "TF-DRF-015"))
    assert code(eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 40]}).startswith("TF-DRF-011")
    assert code(vocab_size=299).startswith("TF-DRF")
    with support.sized(), pytest.raises(ForgeError) as caught:
        small = support.checkpoints.write(tmp_path / "small", SPEC, config={"head_dim": 64})
        (target / "model.safetensors").unlink()
        build_draft(support.speculation(), small, target, tmp_path / "graph", dtype="float32", block_size=16)
    assert caught.value.code == "TF-GRF-019"
