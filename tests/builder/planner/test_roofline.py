"""The roofline: its sum, its two roofs, and what can never make a step slower or faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner.calibration import Calibration, Ratio
from builder.planner.hardware import Gpu, gpu, load_hardware
from builder.planner.speed.cost import CLASSES, costs
from builder.planner.speed.efficiency import efficiency, link_efficiency
from builder.planner.speed.ops import Linear
from builder.planner.speed.roofline import Engine
from builder.planner.speed.step import Step, decode_part, decode_step, mixed_step, prefill_part, prefill_step
from builder.planner.types import ParallelPlan, Precision
from tests.builder.planner.models import known, llama_70b
from trtforge.models.record import Model

_NAMES = ("meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-1.7B")
_PLANS = (ParallelPlan(), ParallelPlan(2), ParallelPlan(4, 2), ParallelPlan(8))
_FORMATS = ("bfloat16", "fp8", "int4_awq", "nvfp4", "int8")
_models = st.sampled_from(_NAMES).map(known)
_plans = st.sampled_from(_PLANS)
_precisions = st.builds(Precision, st.sampled_from(_FORMATS), st.just("bfloat16"), st.sampled_from(["bfloat16", "fp8"]))


@st.composite
def _steps(draw: st.DrawFn) -> Step:
    prompts = prefill_part(draw(st.integers(0, 4)), draw(st.integers(1, 4000)), draw(st.integers(0, 3000)))
    return mixed_step(prompts, decode_part(draw(st.integers(1, 300)), draw(st.integers(2, 8000))))


def _engine(model: Model, precision: Precision, parallel: ParallelPlan, card: Gpu | None = None) -> Engine:
    return Engine(model, precision, card or gpu("h200"), parallel)


@settings(max_examples=40, deadline=None)
@given(_models, _precisions, _plans, _steps())
def test_a_step_is_the_sum_of_its_ops_and_ranges_are_in_order(
    model: Model, precision: Precision, parallel: ParallelPlan, step: Step
) -> None:
    time = _engine(model, precision, parallel).time(step)
    np.testing.assert_allclose(time.total, sum(op.total for op in time.ops))
    np.testing.assert_allclose(time.total, sum(time.by_class().values()))
    slow, typical, fast = time.total
    assert slow >= typical >= fast > 0
    for op in time.ops:
        assert (op.total >= np.maximum(op.compute, op.memory)).all()


@settings(max_examples=40, deadline=None)
@given(_models, _precisions, _plans, _steps(), st.floats(1.0, 4.0))
def test_better_hardware_is_never_slower(
    model: Model, precision: Precision, parallel: ParallelPlan, step: Step, factor: float
) -> None:
    card = gpu("h200")
    wider = card.model_copy(update={"bandwidth_gbs": card.bandwidth_gbs * factor})
    rates: Any = {name: rate * factor for name, rate in card.dense_tflops.items()}
    stronger = card.model_copy(update={"dense_tflops": rates})
    base = _engine(model, precision, parallel, card).time(step).total
    assert (_engine(model, precision, parallel, wider).time(step).total <= base + 1e-15).all()
    assert (_engine(model, precision, parallel, stronger).time(step).total <= base + 1e-15).all()


@settings(max_examples=40, deadline=None)
@given(_models, _plans, st.integers(1, 200), st.integers(10, 5000), st.integers(1, 100), st.integers(1, 3000))
def test_more_work_is_never_faster(
    model: Model, parallel: ParallelPlan, batch: int, context: int, more: int, longer: int
) -> None:
    engine = _engine(model, Precision(), parallel)
    base = engine.time(decode_step(batch, context)).total
    assert (engine.time(decode_step(batch + more, context)).total >= base).all()
    assert (engine.time(decode_step(batch, context + longer)).total >= base).all()
    assert (engine.time(decode_step(batch, context, 3)).total >= base).all()
    assert (engine.time(prefill_step(1, context + longer)).total >= engine.time(prefill_step(1, context)).total).all()


def test_many_steps_at_once_are_the_steps_one_by_one() -> None:
    engine = _engine(llama_70b(), Precision("fp8"), ParallelPlan(4))
    batches = np.array([1, 7, 64])
    together = engine.time(decode_step(batches, 1000)).total
    for index, batch in enumerate(batches):
        np.testing.assert_allclose(together[:, index], engine.time(decode_step(batch, 1000)).total)


def test_a_chunked_prompt_does_the_work_of_a_whole_one() -> None:
    whole = prefill_part(1, 4096)
    chunks = [prefill_part(1, 1024, done) for done in range(0, 4096, 1024)]
    assert sum(float(part.pairs) for part in chunks) == float(whole.pairs) == 4096 * 4097 / 2
    assert sum(float(part.tokens) for part in chunks) == float(whole.tokens)


def test_verification_reads_the_cache_once() -> None:
    one, five = decode_part(8, 1000), decode_part(8, 1000, 5)
    assert float(one.cached) == float(five.cached) == 8000
    assert float(five.pairs) == 8 * (995 + 996 + 997 + 998 + 999 + 5)


def test_a_window_bounds_what_attention_reads() -> None:
    pairs, cached = decode_part(4, 10_000).windowed(512)
    assert float(pairs) == 4 * 512
    assert float(cached) == 4 * 513


def test_operations_and_bytes_of_a_linear() -> None:
    op = Linear("x", n=1000, k=512, weights="fp8", activations="fp8", count=3)
    (cost,) = costs(op, decode_step(8, 100), Precision("fp8"), gpu("h200"))
    assert float(cost.flops) == 3 * 2 * 8 * 1000 * 512
    assert float(cost.bytes) == 3 * (1000 * 512 + 8 * (512 + 2 * 1000))
    assert (cost.op_class, cost.compute) == ("linear_fp8", "fp8")
    (wide,) = costs(op, decode_step(8, 100), Precision("fp8"), gpu("a100"))
    assert (wide.op_class, wide.compute) == ("linear_weight_only", "fp16")


def test_experts_that_a_step_touches() -> None:
    op = Linear("x", n=10, k=20, weights="bfloat16", experts=128, active=8)
    few, many = (float(costs(op, decode_step(batch, 9), Precision(), gpu("h200"))[0].bytes) for batch in (1, 10_000))
    assert few == pytest.approx(8 * 10 * 20 * 2 + 8 * 30 * 2)
    assert many == pytest.approx(128 * 10 * 20 * 2 + 10_000 * 8 * 30 * 2)


def test_llama_70b_decodes_at_the_memory_roof() -> None:
    """One request on 8 H200: 141 GB less the embedding over 8 x 4.8 TB/s is the floor."""
    model = llama_70b()
    time = _engine(model, Precision(), ParallelPlan(8)).time(decode_step(1, 10))
    floor = (2 * (70.55e9 - 128_256 * 8192)) / 8 / 4.8e12
    linears = sum(float(op.bytes) for op in time.ops if op.op_class == "linear_fp16") / 4.8e12
    assert linears == pytest.approx(floor, rel=2e-3)
    assert float(time.total[2]) > floor
    assert next(op for op in time.ops if "gate_proj" in op.name).bound() == "memory"
    prompt = _engine(model, Precision(), ParallelPlan(8)).time(prefill_step(1, 4096))
    assert next(op for op in prompt.ops if "gate_proj" in op.name).bound() == "compute"


def test_every_gpu_has_efficiencies_in_order() -> None:
    for card in load_hardware().gpus:
        for name in CLASSES:
            if name == "communication":
                continue
            found = efficiency(card.arch, name)
            assert len(found.compute) == 3
            assert 0 < found.compute[0] <= found.compute[1] <= found.compute[2] <= 1
            assert 0 < found.memory[0] <= found.memory[1] <= found.memory[2] <= 1
            assert found.launch[0] >= found.launch[1] >= found.launch[2] > 0
    for row in load_hardware().links:
        reached = link_efficiency(row.name)
        assert 0 < reached.bandwidth[0] <= reached.bandwidth[1] <= reached.bandwidth[2] <= 1


def test_calibration_narrows_the_range_to_what_was_measured() -> None:
    model, step = llama_70b(), decode_step(8, 1000)
    plain = _engine(model, Precision("fp8"), ParallelPlan(4)).time(step).by_class()
    ratios = {"linear_fp8": Ratio(1.2, 1.1, 1.3, 5), "communication": Ratio(2.0, 2.0, 2.0)}
    measured = Calibration("h200", "a test", ratios)
    engine = Engine(model, Precision("fp8"), gpu("h200"), ParallelPlan(4), calibration=measured)
    found = engine.time(step).by_class()
    typical = float(plain["linear_fp8"][1])
    np.testing.assert_allclose(found["linear_fp8"], [1.3 * typical, 1.2 * typical, 1.1 * typical])
    np.testing.assert_allclose(found["communication"], 2 * float(plain["communication"][1]))
    np.testing.assert_allclose(found["attention_decode"], plain["attention_decode"])
