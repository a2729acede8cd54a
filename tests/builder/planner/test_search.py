"""The search: every point accounted for, the front, the choice by goal, and refusals that name what binds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.planner import workload as workloads
from builder.planner.capacity import capacity
from builder.planner.hardware import Gpu, gpu
from builder.planner.memory import plan_memory
from builder.planner.search import Found, Point, Slo, Space, choose, default_space, evaluate, pareto
from builder.planner.search.choose import describe
from builder.planner.search.recipe import recipe_text, recommended, relocated
from builder.planner.search.space import BATCHES
from builder.planner.speculation import NONE, Speculating, assumed
from builder.planner.types import ParallelPlan, Precision, Serving
from builder.planner.weights import groups_from_facts, in_precision
from tests.builder.planner.models import known, llama_70b
from tests.support.refusals import refusal
from trtforge.models.record import Model
from trtforge.recipe.load import recipe_from_mapping

SERVING = Serving(64, 8192, 8192)
LOAD = workloads.fixed(2048, 512)
FORMATS: dict[str, tuple[int, ...]] = {"fp8": (), "int4_awq": (128, 64, 32), "nvfp4": (16,)}
SMALL = Space(
    precisions=(Precision("fp8", "bfloat16", "fp8"), Precision()),
    parallels=(ParallelPlan(), ParallelPlan(2), ParallelPlan(3), ParallelPlan(4), ParallelPlan(2, 2)),
    batches=(1, 8, 64, 256),
    speculating=(NONE, Speculating("ngram", 3, (0.2, 0.2))),
    step_tokens=(2048,),
)


def _search(space: Space, model: Model | None = None, card: Gpu | None = None, count: int = 8) -> Found:
    model = model or llama_70b()
    return evaluate(model, groups_from_facts(model), space, card or gpu("h200"), count, SERVING, LOAD)


@pytest.fixture(scope="module")
def found() -> Found:
    return _search(SMALL)


def test_every_point_is_accounted_for(found: Found) -> None:
    assert found.considered == SMALL.size == 2 * 5 * 4 * 2
    assert found.invalid + found.too_large + len(found.points) == found.considered
    # 64 heads do not divide by 3: all of tp3's points; speculation with two stages
    assert found.invalid == 2 * 4 * 2 + 2 * 4
    assert not any(p.parallel.pp > 1 and p.speculating.method != "none" for p in found.points)
    # beside 141 GB of BF16 weights one H200 has room for a few requests, not for eight of 2,560 tokens
    alone = [p for p in found.points if p.precision.weights == "bfloat16" and p.parallel.gpus == 1]
    assert {point.batch for point in alone} == {1}
    assert {point.batch for point in found.points if point.parallel.tp == 4} == {1, 8, 64, 256}


def test_points_hold_their_requests(found: Found) -> None:
    model = llama_70b()
    groups = groups_from_facts(model)
    for point in found.points[::5]:
        serving = replace(
            SERVING,
            max_batch_size=point.batch,
            max_num_tokens=point.max_num_tokens,
            draft_tokens=point.speculating.verified_tokens - 1,
        )
        weights = in_precision(groups, point.precision)
        memory = plan_memory(model, weights, point.precision, point.parallel, serving, gpu("h200"))
        assert all(plan.fits for plan in memory)
        assert capacity(model, memory, LOAD, serving).guaranteed >= point.batch
        assert point.replicas == 8 // point.parallel.gpus


def test_the_front_is_what_no_other_point_beats(found: Found) -> None:
    front = pareto(found.points)
    assert front
    for point in front:
        assert not any(
            other.answer[1] < point.answer[1] and other.output_per_gpu > point.output_per_gpu for other in found.points
        )
    for point in found.points:
        assert any(
            other.answer[1] <= point.answer[1] and other.output_per_gpu * 1.01 >= point.output_per_gpu
            for other in front
        )


def test_goals_rank_differently(found: Found) -> None:
    throughput, latency, fit = (choose(found, Slo(), goal).best for goal in ("throughput", "latency", "fit"))
    known = [point for point in found.points if point.speculating.method == "none"]
    assert len(known) < len(found.points)
    assert throughput.output[1] * 1.03 >= max(point.output[1] for point in known)
    assert latency.answer[1] <= 1.03 * min(point.answer[1] for point in known)
    assert fit.parallel.gpus == min(point.parallel.gpus for point in found.points)
    assert latency.itl[1] < throughput.itl[1]


def test_an_assumed_acceptance_is_not_recommended(found: Found) -> None:
    quickest = min(found.points, key=lambda point: point.answer[1])
    assert quickest.speculating.method != "none" and not quickest.speculating.measured
    assert choose(found, Slo(), "latency").best.speculating.method == "none"
    measured = replace(quickest, speculating=replace(quickest.speculating, measured=True))
    points = (*(point for point in found.points if point is not quickest), measured)
    assert choose(replace(found, points=points), Slo(), "latency").best is measured


def test_service_levels_bind(found: Found) -> None:
    free = choose(found, Slo(), "throughput")
    tight = choose(found, Slo(ttft=0.5, itl=0.15), "throughput")
    assert tight.meeting < free.meeting
    assert tight.best.first[1] <= 0.5 and tight.best.gap[1] <= 0.15
    assert tight.best.output[1] <= free.best.output[1]
    wanted = free.best.requests[1] * 0.9
    assert choose(found, Slo(rate=wanted), "latency").best.requests[1] >= wanted


def test_certain_means_at_the_slow_end_too(found: Found) -> None:
    best = choose(found, Slo(), "latency").best
    assert not choose(found, Slo(itl=best.gap[1] * 1.001), "latency").certain
    assert choose(found, Slo(itl=best.gap[0] * 1.2, ttft=60), "latency").certain


@pytest.mark.parametrize(
    ("slo", "misses"),
    [
        (Slo(itl=1e-4), "time between tokens"),
        (Slo(ttft=1e-3, itl=1.0), "time to the first token"),
        (Slo(rate=1e6), "request rate"),
    ],
)
def test_levels_that_nothing_meets(found: Found, slo: Slo, misses: str) -> None:
    error = refusal(choose, found, slo, "throughput", terms=lambda point: {"linear_fp8": 0.7, "communication": 0.3})
    assert error.code == "TF-PLN-056" and misses in error.message
    assert error.numbers["misses"] == misses and error.numbers["binding"] == "linear_fp8"
    closest = error.numbers["closest"]
    ratio = error.numbers["ratio"]
    assert ratio > 1
    assert ratio == pytest.approx(min(slo.worst(point)[0] for point in found.points), abs=1e-4)
    assert closest["batch"] in SMALL.batches


def test_a_model_that_nothing_holds() -> None:
    space = replace(SMALL, parallels=(ParallelPlan(), ParallelPlan(2)))
    nothing = _search(space, known("meta-llama/Meta-Llama-3.1-405B"), gpu("l40s"), 2)
    assert not nothing.points and nothing.deficit > 0
    error = refusal(choose, nothing, Slo(), "throughput")
    assert error.code == "TF-PLN-057" and error.numbers["deficit_bytes"] == nothing.deficit
    # the closest is the one that spreads the smaller weights over both: what it lacks is what is left of them
    assert nothing.nearest is not None
    assert (nothing.nearest[0].weights, nothing.nearest[1]) == ("fp8", ParallelPlan(2))
    assert 150e9 < nothing.deficit < 180e9


def test_points_whose_recipe_is_refused_are_passed_over(found: Found) -> None:
    best = choose(found, Slo(), "throughput").best

    def accept(point: Point) -> list[str]:
        return [] if point.precision != best.precision else ["TF-K3-001: no"]

    second = choose(found, Slo(), "throughput", accept=accept)
    assert second.best.precision != best.precision
    assert second.refused == ("TF-K3-001: no",)
    error = refusal(choose, found, Slo(), "throughput", accept=lambda point: ["TF-K16-001: one rank only"])
    assert error.code == "TF-PLN-058" and "one rank only" in error.message


def test_the_default_space_follows_the_tables() -> None:
    space = default_space(llama_70b(), Precision(), gpu("h200"), 8, SERVING, formats=FORMATS)
    assert {p.weights for p in space.precisions} == {"bfloat16", "fp8", "int4_awq", "nvfp4"}
    assert {p.kv for p in space.precisions} == {"bfloat16", "fp8"}
    old = default_space(llama_70b(), Precision(), gpu("a100"), 8, SERVING, formats=FORMATS)
    assert {p.weights for p in old.precisions} == {"bfloat16", "int4_awq"}
    assert {p.kv for p in old.precisions} == {"bfloat16"}
    assert space.size >= 5000
    assert all(plan.gpus <= 8 for plan in space.parallels)
    assert {s.method for s in space.speculating} == {"none", "ngram"}
    # an assumed acceptance counts with its low end, a measured one as it is
    assert all(s.acceptance == (0.2, 0.2) for s in space.speculating if s.method == "ngram")
    without = default_space(llama_70b(), Precision(), gpu("h200"), 8, SERVING, formats=FORMATS, ngram=False)
    assert {s.method for s in without.speculating} == {"none"}
    spoken = default_space(
        llama_70b(), Precision(), gpu("h200"), 8, SERVING, formats=FORMATS, speculating=assumed("eagle3", 3, 0.8)
    )
    assert {s.acceptance for s in spoken.speculating if s.method == "eagle3"} == {(0.8, 0.8)}


def test_a_large_fleet_is_searched_by_whole_replicas() -> None:
    space = default_space(llama_70b(), Precision(), gpu("h200"), 64, SERVING, formats=FORMATS)
    assert {plan.gpus for plan in space.parallels} == {1, 2, 4, 8, 16, 32, 64}


def test_a_quantized_checkpoint_keeps_its_format() -> None:
    model = replace(llama_70b(), prequantized="fp8")
    space = default_space(model, Precision("fp8"), gpu("h200"), 8, SERVING, formats=FORMATS)
    assert {p.weights for p in space.precisions} == {"fp8"}


def test_block_lengths_that_divide_are_found() -> None:
    """Qwen2-72B's MLP of 29,568 over 4 ranks leaves 7,392: 128 and 64 do not divide it, 32 does."""
    model = replace(llama_70b(), ffn=29_568)
    space = Space((Precision("int4_awq"),), (ParallelPlan(4),), (1,), groups={"int4_awq": (128, 64, 32)})
    found = _search(space, model)
    assert {point.precision.group_size for point in found.points} == {32}
    assert _search(replace(space, groups={"int4_awq": (128, 64)}), model).invalid == found.considered


# recipes -----------------------------------------------------------------------------------------------------------
WRITTEN: dict[str, Any] = {
    "name": "big",
    "model": {"source": "weights"},
    "quantize": {"format": "int4_awq", "group_size": 64, "kv_cache": "fp8_cast"},
    "build": {
        "target": "trtllm-engine",
        "limits": {"max_batch_size": 4, "max_seq_len": 1024},
        "kv_cache": {"memory": "1GiB", "block_size": 64},
    },
    "triton": {"layout": "inflight_batcher_llm"},
    "bench": {"concurrency": [1, 16, 512]},
}


def _point(found: Found, **changes: Any) -> Point:
    return replace(choose(found, Slo(), "throughput").best, **changes)


def test_the_recipe_holds_what_the_point_decides(found: Found) -> None:
    point = _point(found, batch=64, parallel=ParallelPlan(2, 2), precision=Precision("fp8", "bfloat16", "fp8"))
    data = recommended(WRITTEN, point, gpu("h200"), SERVING, LOAD)
    recipe = recipe_from_mapping(data).recipe
    assert (recipe.quantize.format, recipe.quantize.kv_cache, recipe.quantize.group_size) == ("fp8", "fp8_cast", None)
    assert (recipe.build.parallel.tp, recipe.build.parallel.pp) == (2, 2)
    assert recipe.build.limits.max_batch_size == 64
    assert recipe.build.limits.max_seq_len == 8192
    assert recipe.build.kv_cache.memory is None and recipe.build.kv_cache.free_fraction == 0.9
    assert recipe.build.kv_cache.block_size == 64
    assert recipe.build.architectures == ("sm_90",)
    assert recipe.bench.concurrency == (1, 16)
    assert WRITTEN["build"]["limits"]["max_batch_size"] == 4


def test_the_recipes_text_loads_back(found: Found) -> None:
    point = _point(found, speculating=Speculating("ngram", 3, (0.2, 0.2)))
    data = recommended(WRITTEN, point, gpu("h200"), SERVING, LOAD)
    text = recipe_text(data, point, gpu("h200"), 8, LOAD)
    assert yaml.safe_load(text) == data
    recipe = recipe_from_mapping(yaml.safe_load(text)).recipe
    assert (recipe.speculation.method, recipe.speculation.max_draft_len) == ("ngram", 3)
    assert describe(point) in text and "not measured" in text


def test_speculation_that_does_not_pay_is_taken_out(found: Found) -> None:
    written = {**WRITTEN, "speculation": {"method": "eagle3", "draft": "hf:a/b", "max_draft_len": 4}}
    plain = recommended(written, _point(found, speculating=NONE), gpu("h200"), SERVING, LOAD)
    assert plain["speculation"] == {"method": "none"}
    spoken = _point(found, speculating=assumed("eagle3", 5))
    kept = recommended(written, spoken, gpu("h200"), SERVING, LOAD)
    assert kept["speculation"] == {"method": "eagle3", "draft": "hf:a/b", "max_draft_len": 5}


def test_an_unquantized_point_of_a_recipe_without_quantization(found: Found) -> None:
    written = {"name": "plain", "model": {"source": "weights"}}
    point = _point(found, precision=Precision(), batch=8)
    data = recommended(written, point, gpu("h200"), SERVING, LOAD)
    assert "quantize" not in data and "speculation" not in data
    assert recipe_from_mapping(data).recipe.bench.concurrency == (1, 4)


def test_another_folder(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    loaded = recipe_from_mapping(WRITTEN, here)
    assert relocated(WRITTEN, loaded, here) == WRITTEN
    assert relocated(WRITTEN, loaded, there)["model"]["source"] == str(here / "weights")
    assert relocated(WRITTEN, loaded, tmp_path)["model"]["source"] == "here/weights"
    hub = {**WRITTEN, "model": {"source": "hf:org/name"}}
    assert relocated(hub, recipe_from_mapping(hub, here), there) == hub


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("bench.prompts", {"bench": {"prompts": "file:prompts.txt"}}),
        ("evals.custom[mine].path", {"evals": {"custom": [{"name": "mine", "path": "file:items.jsonl"}]}}),
        ("evals.tasks[0]", {"evals": {"tasks": ["file:task.yaml"]}}),
    ],
)
def test_a_recipe_that_reads_files_keeps_its_folder(key: str, section: dict[str, Any], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    reading = {**WRITTEN, **section}
    refused = refusal(relocated, reading, recipe_from_mapping(reading, here), there)
    assert refused.code == "TF-PLN-059" and key in refused.message


def test_batches_rise() -> None:
    assert list(BATCHES) == sorted(set(BATCHES)) and BATCHES[0] == 1
