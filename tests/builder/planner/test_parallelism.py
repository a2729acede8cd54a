"""Splits: the reasons of the impossible ones, the choice by goal, and disaggregation's conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner import workload
from builder.planner.disaggregation import advise, break_even_bandwidth, break_even_tokens
from builder.planner.hardware import gpu
from builder.planner.model import from_config
from builder.planner.parallelism import Split, candidates, invalid_reasons, recommend, splits
from builder.planner.types import ParallelPlan, Precision, Serving
from builder.planner.weights import groups_from_facts, in_precision
from tests.builder.planner.models import bare, known, llama_70b
from tests.support.refusals import refusal
from trtforge.models.record import Model

SERVING = Serving(256, 8192, 4096)
LOAD = workload.fixed(2048, 512)
PLAIN = Precision()


def _splits(model: Model, card: str, count: int, precision: Precision = PLAIN, **more: Any) -> list[Split]:
    groups = in_precision(groups_from_facts(model), precision)
    return splits(model, groups, precision, SERVING, gpu(card), count, LOAD, **more)


def _reasons(model: Model, parallel: ParallelPlan, count: int, precision: Precision = PLAIN) -> str:
    return "; ".join(invalid_reasons(model, precision, parallel, count))


# reasons -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "parallel", "count", "precision", "reason"),
    [
        ({}, ParallelPlan(2, 3), 8, PLAIN, "a replica's 2 x 3 = 6 GPUs do not divide 8"),
        ({}, ParallelPlan(1, 8), 8, PLAIN, "pp 8 exceeds the 4 layers"),
        (
            {"num_attention_heads": 28, "head_dim": 32},
            ParallelPlan(8),
            8,
            PLAIN,
            "heads: 28 do not divide by tp 8, remainder 4",
        ),
        (
            {"num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 32},
            ParallelPlan(4),
            4,
            PLAIN,
            "KV heads: 6 neither",
        ),
        ({"intermediate_size": 510}, ParallelPlan(4), 4, PLAIN, "MLP width: 510 does not divide by tp 4, remainder 2"),
        ({}, ParallelPlan(2, 1, 2), 2, PLAIN, "ep 2 for a model without experts"),
        (
            {"intermediate_size": 768},
            ParallelPlan(4),
            4,
            Precision("int4_awq"),
            "192 is no multiple of the scale block 128",
        ),
    ],
)
def test_each_reason_carries_its_arithmetic(
    changes: dict[str, Any], parallel: ParallelPlan, count: int, precision: Precision, reason: str
) -> None:
    assert reason in _reasons(from_config(bare(**changes)), parallel, count, precision)


def test_reasons_of_experts() -> None:
    model = from_config(bare(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=192))
    assert "experts: 6 do not divide by ep 4, remainder 2" in _reasons(model, ParallelPlan(4, 1, 4), 4)
    assert "ep 3 does not divide tp 4" in _reasons(model, ParallelPlan(4, 1, 3), 4)
    assert _reasons(model, ParallelPlan(4, 1, 2), 4) == ""
    block = Precision("fp8_block")
    assert "expert width: 192 / 2 = 96 is no multiple" in _reasons(model, ParallelPlan(2), 2, block)
    # what stops Qwen3-235B-FP8 at tp 8 without expert parallelism: 1536 / 8 = 192
    big = known("Qwen/Qwen3-235B-A22B")
    assert "1536 / 8 = 192 is no multiple of the scale block 128" in _reasons(big, ParallelPlan(8), 8, block)
    assert _reasons(big, ParallelPlan(8, 1, 8), 8, block) == ""


def test_few_kv_heads_are_copied_not_refused() -> None:
    model = from_config(bare(num_key_value_heads=2))
    assert _reasons(model, ParallelPlan(8), 8) == ""
    found = next(split for split in _splits(model, "h100", 8) if split.parallel == ParallelPlan(8))
    assert any("KV head" in note for note in found.notes)


def test_every_combination_is_listed_once() -> None:
    for count in (1, 6, 8):
        listed = list(candidates(count, moe=False))
        assert len(set(listed)) == len(listed)
        assert {(s.tp, s.pp) for s in listed} == {
            (tp, pp) for tp in range(1, count + 1) for pp in range(1, count + 1) if tp * pp <= count
        }
    large = list(candidates(4096, moe=True))
    assert large and all(4096 % split.gpus == 0 and split.tp % split.ep == 0 for split in large)
    assert {s.ep for s in candidates(4, moe=True) if s.tp == 4} == {1, 2, 3, 4}


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([4, 6, 8, 12]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 6).map(lambda n: 64 * n),
    st.integers(1, 8),
    st.integers(1, 16),
)
def test_valid_means_divisible(heads: int, kv_heads: int, ffn: int, layers: int, count: int) -> None:
    if heads % kv_heads:
        return
    model = from_config(
        bare(
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            head_dim=32,
        )
    )
    for parallel in candidates(count, moe=False):
        tp, pp = parallel.tp, parallel.pp
        possible = (
            count % (tp * pp) == 0
            and heads % tp == 0
            and (kv_heads % tp == 0 or tp % kv_heads == 0)
            and ffn % tp == 0
            and pp <= layers
        )
        assert (not invalid_reasons(model, PLAIN, parallel, count)) == possible


def test_counts_below_one_are_refused() -> None:
    assert refusal(_splits, llama_70b(), "h100", 0).code == "TF-PLN-008"
    assert refusal(_splits, llama_70b(), "h100", 10**9).code == "TF-PLN-008"
    assert refusal(_splits, llama_70b(), "h100", 2, network="pigeons").code == "TF-PLN-002"


# the choice --------------------------------------------------------------------------------------------------------
def test_goals_choose_differently() -> None:
    found = _splits(llama_70b(), "h100", 8)
    fit, latency, throughput = (recommend(found, goal) for goal in ("fit", "latency", "throughput"))
    assert fit is not None and latency is not None and throughput is not None
    assert fit[0].parallel.gpus == 2, "141 GB need two GPUs of 80 GiB"
    assert latency[0].parallel == ParallelPlan(8)
    assert throughput[0].tokens_per_second == max(s.tokens_per_second or 0 for s in found)
    # the rate is the floor's: beside the plan's own figure it would read as another total
    replicas = throughput[0].replicas
    assert replicas > 1
    assert throughput[1] == f"the most tokens a second over {replicas} replicas, by the floors of the times"
    single = recommend(_splits(from_config(bare()), "h100", 1), "throughput")
    assert single is not None and single[1] == "the most tokens a second, by the floors of the times"
    alone = next(split for split in found if split.parallel == ParallelPlan())
    assert alone.valid and not alone.fits and alone.step is None


def test_tensor_parallelism_stays_inside_the_node() -> None:
    model = replace(known("meta-llama/Meta-Llama-3.1-405B"))
    found = _splits(model, "h100", 32)
    wide = next(split for split in found if split.parallel == ParallelPlan(16))
    assert not wide.local and any("leaves the fast domain" in note for note in wide.notes)
    for goal in ("fit", "latency", "throughput"):
        best = recommend(found, goal)
        assert best is not None and best[0].parallel.tp <= 8
    # 810 GB of weights do not fit one node of 8: stages go across
    fit = recommend(found, "fit")
    assert fit is not None and fit[0].parallel.pp > 1


def test_outside_the_node_only_when_nothing_else_fits() -> None:
    model = from_config(bare(num_hidden_layers=1, intermediate_size=2**20, hidden_size=2**15, num_attention_heads=256))
    model = replace(model, kv_heads=256, head_size=128)
    found = _splits(model, "l4", 16)
    best = recommend(found, "fit")
    assert best is not None and best[0].parallel.tp > 8 and "leaves the fast domain" in best[1]
    assert recommend(_splits(llama_70b(), "l4", 1), "fit") is None


def test_mixtures_get_whole_experts() -> None:
    best = recommend(_splits(known("Qwen/Qwen3-235B-A22B"), "h200", 8, Precision("fp8_block", kv="fp8")), "throughput")
    assert best is not None and best[0].parallel.ep > 1


def test_a_faster_link_is_never_slower() -> None:
    slow = _splits(llama_70b(), "h100", 16, network="ethernet-100g")
    fast = _splits(llama_70b(), "h100", 16, network="ib-xdr")
    for before, after in zip(slow, fast, strict=True):
        assert before.parallel == after.parallel
        if before.step is not None and after.step is not None:
            assert after.step <= before.step


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(factor: float) -> None:
    model, card = llama_70b(), gpu("h100")
    fast = card.model_copy(update={"bandwidth_gbs": card.bandwidth_gbs * factor})
    groups = groups_from_facts(model)
    rows = [splits(model, groups, PLAIN, SERVING, item, 4, LOAD) for item in (card, fast)]
    for before, after in zip(*rows, strict=True):
        assert (before.step is None) == (after.step is None)
        if before.step is not None and after.step is not None:
            assert after.step <= before.step * (1 + 1e-12)


# disaggregation ----------------------------------------------------------------------------------------------------
def test_the_break_even_of_transfer_and_recompute() -> None:
    # 1 MB a token, 1e12 operations a token at 1e15 a second: 1 ms to compute, so 1 GB/s moves it as fast
    assert break_even_bandwidth(1e6, 1e12, 1e15) == pytest.approx(1e9)
    assert break_even_tokens(1e6, 2e9, 5e-3, 1e12, 1e15) == pytest.approx(10)
    assert break_even_tokens(1e6, 0.5e9, 5e-3, 1e12, 1e15) is None


def test_all_three_conditions_are_needed() -> None:
    model, split = llama_70b(), ParallelPlan(4)

    def conditions(count: int = 8, **changes: Any) -> dict[str, bool]:
        named: dict[str, Any] = {"tokens": 8192, "prefill": 0.6, "share": 0.5, "itl": 0.05, **changes}
        advice = advise(model, PLAIN, split, count, **named)
        found = {item.name: item.holds for item in advice.conditions}
        assert advice.disaggregate == all(found.values())
        assert all(item.why for item in advice.conditions)
        return found

    assert conditions() == {"interference": True, "scale": True, "transfer": True}
    assert not conditions(prefill=0.04)["interference"]
    assert not conditions(share=0.1)["interference"]
    assert not conditions(4)["scale"]
    slow = replace(model, kv_heads=64)
    advice = advise(slow, PLAIN, ParallelPlan(), 8, tokens=8192, prefill=0.6, share=0.5, network="ethernet-100g")
    transfer = next(item for item in advice.conditions if item.name == "transfer")
    assert transfer.holds == (advice.transfer < advice.recompute)
    assert (advice.break_even_bandwidth > 12.5e9) == (not transfer.holds)


def test_inside_the_node_the_links_decide() -> None:
    """H100 PCIe: NVLink joins pairs, PCIe the node. Four and eight ranks are quicker, by the same figures."""
    found = _splits(llama_70b(), "h100-pcie", 8, Precision("fp8", kv="fp8"))
    best = recommend(found, "latency")
    assert best is not None
    assert best[0].single == min(split.single for split in found if split.single is not None)
    assert best[0].parallel.tp > 2
