"""The ops of a step: the written graph and the sizes say the same; fusion and sharding keep what is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.graphs.build import build_graph
from builder.planner.communication import step_communication
from builder.planner.hardware import gpu
from builder.planner.model import from_config, read_config
from builder.planner.speed import roofline
from builder.planner.speed.efficiency import LinkEfficiency
from builder.planner.speed.graph_ops import ops_of_graph
from builder.planner.speed.ops import (
    FUSED_POINTWISE,
    Attention,
    Collective,
    Linear,
    Op,
    Pointwise,
    fused,
    ops_of_model,
    sharded,
)
from builder.planner.speed.roofline import Engine
from builder.planner.speed.step import decode_step
from builder.planner.types import ParallelPlan, Precision
from builder.planner.weights import groups_from_facts
from tests.builder.planner.models import bare, known, llama_70b
from tests.builder.quantized_tiny import Quantizer
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.models.record import Model

_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicBlockQuantize")


def _graph(folder: Path, fmt: str, **sizes: Any) -> tuple[list[Op], Model, Precision]:
    write_tiny_llama(folder, **sizes)
    if fmt != "none":
        Quantizer(folder, fmt, kv_fp8=fmt == "fp8")
    build_graph(folder, folder)
    kv = "fp8" if fmt == "fp8" else "bfloat16"
    precision = Precision("bfloat16" if fmt == "none" else fmt, "bfloat16", kv)
    return ops_of_graph(folder), from_config(read_config(folder)), precision


@pytest.mark.parametrize("fmt", ["none", "fp8", "nvfp4", "int4_awq"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"layers": 3, "heads": 6, "kv_heads": 3, "width": 96, "ffn": 160},
        {"architecture": "Qwen2ForCausalLM", "layers": 3, "sliding_window": 64, "max_window_layers": 1},
        {"architecture": "Qwen3ForCausalLM", "head_size": 128, "tie": False},
    ],
)
def test_graph_and_sizes_agree(tmp_path: Path, fmt: str, sizes: dict[str, Any]) -> None:
    of_graph, model, precision = _graph(tmp_path, fmt, **sizes)
    of_sizes = ops_of_model(model, precision)
    assert {op for op in of_graph if not (isinstance(op, Pointwise) and op.kind in _ROUNDING)} == set(of_sizes)
    assert set(fused(of_graph)) == set(fused(of_sizes))
    assert len([op for op in of_graph if isinstance(op, Linear)]) == 8


def test_a_graph_gives_the_same_times(tmp_path: Path) -> None:
    of_graph, model, precision = _graph(tmp_path, "fp8")
    step = decode_step(4, 100)
    with_graph = Engine(model, precision, gpu("h200"), ParallelPlan(), raw_ops=of_graph).time(step)
    without = Engine(model, precision, gpu("h200"), ParallelPlan()).time(step)
    np.testing.assert_allclose(with_graph.total, without.total)


def test_a_file_that_is_no_graph(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    assert refusal(ops_of_graph, tmp_path).code == "TF-PLN-054"
    assert refusal(ops_of_graph, tmp_path / "absent.onnx").code == "TF-PLN-054"


def test_a_native_graph_has_no_ops_to_plan_with(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    build_graph(tmp_path, tmp_path, mode="native")
    assert refusal(ops_of_graph, tmp_path).code == "TF-PLN-054"


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-8B"],
)
def test_linears_are_the_weights(name: str) -> None:
    model = known(name)
    ops = ops_of_model(model, Precision())
    of_ops = sum(op.n * op.k * op.count * max(op.experts, 1) for op in ops if isinstance(op, Linear))
    groups = groups_from_facts(model)
    matrices = [group for group in groups if len(group.shape) == 2 and group.part != "embedding"]
    assert of_ops == sum(group.elements * group.count for group in matrices)


def test_fusion_keeps_arithmetic_and_drops_pointwise() -> None:
    ops = ops_of_model(llama_70b(), Precision("fp8"))
    together = fused(ops)
    assert _macs(together) == _macs(ops)
    assert {op.name.rpartition(".")[2] for op in together if isinstance(op, Linear)} == {
        "q_proj+k_proj+v_proj",
        "o_proj",
        "gate_proj+up_proj",
        "down_proj",
        "lm_head",
    }
    assert not any(isinstance(op, Pointwise) and op.kind in FUSED_POINTWISE for op in together)


def _macs(ops: list[Op]) -> int:
    return sum(op.n * op.k * op.count for op in ops if isinstance(op, Linear))


def test_excluded_layers_keep_the_base_format() -> None:
    model = llama_70b()
    precision = Precision("fp8", exclude=("lm_head", "model.layers.0.mlp", "*.79.self_attn.o_proj"))
    found = {(op.name, op.weights): op.count for op in ops_of_model(model, precision) if isinstance(op, Linear)}
    assert found["model.layers.*.mlp.gate_proj", "bfloat16"] == 1
    assert found["model.layers.*.mlp.gate_proj", "fp8"] == 79
    assert found["model.layers.*.self_attn.o_proj", "bfloat16"] == 1
    assert found["model.layers.*.self_attn.q_proj", "fp8"] == 80
    assert ("lm_head", "fp8") not in found


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_ranks_share_the_linears(tp: int) -> None:
    model = llama_70b()
    ops = ops_of_model(model, Precision())
    rank = sharded(ops, model, ParallelPlan(tp))
    assert _macs(rank) * tp == _macs(ops)
    attention = next(op for op in rank if isinstance(op, Attention))
    assert (attention.heads, attention.kv_heads) == (64 // tp, 8 // tp)


def test_kv_heads_are_copied_past_their_number() -> None:
    model = llama_70b()
    rank = sharded(ops_of_model(model, Precision()), model, ParallelPlan(16))
    keys = next(op for op in rank if isinstance(op, Linear) and op.name.endswith("k_proj"))
    assert keys.n == model.head_size


def test_experts_are_shared_out() -> None:
    model = known("Qwen/Qwen3-235B-A22B")
    rank = sharded(ops_of_model(model, Precision()), model, ParallelPlan(8, 1, 4))
    up = next(op for op in rank if isinstance(op, Linear) and op.name.endswith("experts.up_proj"))
    assert (up.experts, up.groups, up.n) == (32, 4, 1536 // 2)
    whole = replace(up, experts=128, groups=1)
    assert whole.experts == up.experts * up.groups


@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        ("meta-llama/Meta-Llama-3.1-70B", ParallelPlan(4)),
        ("meta-llama/Meta-Llama-3.1-70B", ParallelPlan(4, 2)),
        ("meta-llama/Meta-Llama-3.1-70B", ParallelPlan(8, 4)),
        ("Qwen/Qwen3-235B-A22B", ParallelPlan(8, 1, 8)),
        ("Qwen/Qwen3-235B-A22B", ParallelPlan(8, 1, 2)),
    ],
)
def test_collectives_are_those_of_the_communication_module(
    model: str, parallel: ParallelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With links at their peak and free launches, what is left is the module's floor (and the logits' gathering)."""
    one = np.ones(3)
    monkeypatch.setattr(roofline, "link_efficiency", lambda *_: LinkEfficiency(one, 0 * one, one))
    facts = known(model)
    time = Engine(facts, Precision(), gpu("h200"), parallel).time(decode_step(32, 1000))
    ours = {op.name: float(op.total[1]) for op in time.ops if op.op_class == "communication"}
    logits = ours.pop("lm_head all_to_all")
    floor = step_communication(facts, parallel, gpu("h200"), 32).total
    assert sum(ours.values()) == pytest.approx(floor, rel=1e-9)
    assert logits > 0


def test_one_rank_does_not_communicate() -> None:
    model = llama_70b()
    rank = sharded(ops_of_model(model, Precision()), model, ParallelPlan())
    assert not any(isinstance(op, Collective) for op in rank)


def test_sliding_windows_have_an_attention_of_their_own() -> None:
    model = from_config(bare(sliding_window=512, model_type="gemma2", sliding_window_pattern=2))
    windows = {op.window: op.count for op in ops_of_model(model, Precision()) if isinstance(op, Attention)}
    assert windows == {0: 2, 512: 2}


def test_unknown_operators_count_as_pointwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    of_graph, _, _ = _graph(tmp_path, "none")
    path = tmp_path / "model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Swish":
            node.op_type = "Gelu2"
    path.write_bytes(model.SerializeToString())
    changed = ops_of_graph(tmp_path)
    assert _kinds(changed) - _kinds(of_graph) == {"Gelu2"}


def _kinds(ops: list[Op]) -> set[str]:
    return {op.kind for op in ops if isinstance(op, Pointwise)}
