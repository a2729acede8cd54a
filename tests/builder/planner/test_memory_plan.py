"""The memory plan: its sum, real headers, ranks, and what must hold for any model, split and GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner.capacity import capacity, context_ceiling
from builder.planner.chart import bar, write_svg
from builder.planner.facts import model_from_config, model_from_folder, model_from_record
from builder.planner.hardware import Gpu, gpu, load_hardware
from builder.planner.host import plan_host
from builder.planner.memory import activation_terms, compare, gate, plan_memory
from builder.planner.model import from_config, read_config
from builder.planner.precision import WEIGHT_FORMATS
from builder.planner.runtime import runtime_items, runtime_terms
from builder.planner.sharing import Tenant, share_gpu, tenant
from builder.planner.types import Beside, MemoryPlan, ParallelPlan, Precision, Serving
from builder.planner.weights import (
    TensorGroup,
    active_parameters,
    groups_from_facts,
    groups_from_headers,
    in_precision,
    rank_bytes,
    rank_weights,
)
from builder.planner.workload import fixed
from quantize.intake import inspect_source
from tests.builder.planner.models import bare, known, llama_70b
from tests.builder.quantized_tiny import Quantizer
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import GateFailed
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.models.kv import kv_bytes_per_token, stage_layers
from trtforge.models.loading import Footprint
from trtforge.models.record import Model

ONE = ParallelPlan()
SERVING = Serving(64, 4096, 4096)


def _plan(
    model: Model,
    card: str | Gpu = "h200",
    parallel: ParallelPlan = ONE,
    precision: Precision = Precision(),
    serving: Serving = SERVING,
) -> tuple[MemoryPlan, ...]:
    groups = in_precision(groups_from_facts(model), precision)
    return plan_memory(model, groups, precision, parallel, serving, card if isinstance(card, Gpu) else gpu(card))


# the sum -----------------------------------------------------------------------------------------------------------
def test_the_total_is_the_sum_of_its_terms() -> None:
    (plan,) = _plan(llama_70b(), "b200")
    assert plan.total == sum(term.bytes for term in plan.terms)
    assert plan.total == sum(plan.of(kind) for kind in ("weights", "draft", "activations", "runtime", "kv"))
    assert plan.of("weights") == 141_107_412_992
    assert plan.free == plan.capacity - plan.total and plan.fits
    assert plan.pool.bytes == plan.pool.blocks * 32 * 327_680
    for term in plan.terms:
        assert term.low <= term.bytes <= term.high and term.formula


def test_the_pool_is_the_share_of_what_is_left() -> None:
    (plan,) = _plan(llama_70b(), "b200", serving=replace(SERVING, free_fraction=0.8))
    left = plan.capacity - (plan.total - plan.pool.bytes)
    assert left * 0.8 - plan.pool.bytes_per_block < plan.pool.bytes <= left * 0.8
    (given_pool,) = _plan(llama_70b(), "b200", serving=replace(SERVING, pool_bytes=2**33))
    assert given_pool.pool.sized_by == "memory" and 2**33 - given_pool.pool.bytes < given_pool.pool.bytes_per_block


def test_activations_follow_from_the_limits() -> None:
    model = from_config(bare())
    step, logits = activation_terms(model, Precision(), ONE, Serving(4, 10, 64))
    # bf16 rows: residual and norm 2 x 256, the MLP's 3 x 512 over attention's (2 x 8 + 2 x 4) x 32
    assert step.bytes == 2 * 10 * (512 + 1536) and step.high == 2 * 10 * (512 + 1536 + 768)
    assert logits.bytes == 4 * 4 * 1000
    assert activation_terms(model, Precision(), ONE, Serving(4, 10, 64, draft_tokens=3))[1].bytes == 4 * logits.bytes
    assert len(activation_terms(model, Precision(), ONE, Serving(4, 10, 64), last=False)) == 1


def test_a_draft_takes_weights_and_a_part_of_every_block() -> None:
    model, draft = llama_70b(), known("meta-llama/Meta-Llama-3.1-8B")
    groups, small = groups_from_facts(model), groups_from_facts(draft)
    alone = plan_memory(model, groups, Precision(), ParallelPlan(4, 2), SERVING, gpu("h200"))
    both = plan_memory(model, groups, Precision(), ParallelPlan(4, 2), SERVING, gpu("h200"), Beside(draft, small))
    assert both[0] == alone[0], "the draft lies on the last stage"
    assert both[1].of("draft") == sum(rank_weights(small, draft, ParallelPlan(4)).values())
    extra = kv_bytes_per_token(draft.kv, "bfloat16", tp=4)
    assert both[1].pool.bytes_per_token == alone[1].pool.bytes_per_token + extra
    assert both[1].pool.tokens < alone[1].pool.tokens


def test_runtime_terms_are_ranges_with_sources() -> None:
    for item in runtime_items().values():
        assert item.low <= item.typical <= item.high and all(s.url.startswith("https://") for s in item.sources)
    names = [len(runtime_terms(ParallelPlan(*sizes))) for sizes in ((1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 8))]
    assert names == [3, 4, 4, 5]


# tensors and ranks -------------------------------------------------------------------------------------------------
def test_real_headers_and_the_sizes_give_the_same_tensors(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    from_headers = model_from_folder(tmp_path / "tiny")
    from_sizes = model_from_config(tmp_path / "tiny")
    assert from_headers.measured and not from_sizes.measured
    assert sum(g.bytes for g in from_headers.groups) == sum(g.bytes for g in from_sizes.groups)
    assert sum(g.bytes for g in from_headers.groups) == sum(
        info.nbytes for info in read_headers(tmp_path / "tiny").values()
    )
    record = inspect_source("tiny", tmp_path)
    assert record is not None
    by_record = model_from_record(record.model)
    for parallel in (ONE, ParallelPlan(2), ParallelPlan(1, 2), ParallelPlan(2, 2)):
        for stage in range(parallel.pp):
            parts = [
                rank_weights(item.groups, item.facts, parallel, stage) for item in (from_headers, from_sizes, by_record)
            ]
            assert parts[0] == parts[1] == parts[2]
    assert record.model.parameters == by_record.facts.parameters


def test_a_quantized_checkpoint_is_counted_as_it_is_stored() -> None:
    model = from_config(bare(num_hidden_layers=2))
    headers = {
        "model.layers.0.self_attn.q_proj.weight": TensorInfo("f", "U8", (256, 128), 0, 256 * 128),
        "model.layers.0.self_attn.q_proj.weight_scale": TensorInfo("f", "F8_E4M3", (256, 16), 0, 4096),
        "model.layers.0.self_attn.q_proj.weight_scale_2": TensorInfo("f", "F32", (), 0, 4),
        "model.layers.1.self_attn.o_proj.weight": TensorInfo("f", "F8_E4M3", (256, 256), 0, 65536),
        "model.layers.1.self_attn.o_proj.weight_scale": TensorInfo("f", "F32", (256,), 0, 1024),
    }
    groups = in_precision(groups_from_headers(headers, model), Precision("fp8"))
    assert sum(group.bytes for group in groups) == sum(info.nbytes for info in headers.values())
    whole = rank_weights(groups, model, ONE)
    half = rank_weights(groups, model, ParallelPlan(2))
    # q by rows with its block scales, o by columns; a scale a row of o and one of the tensor lie on both ranks
    assert half["attention"] * 2 == whole["attention"]
    assert half["scales"] == 4096 // 2 + 4 + 1024


@pytest.mark.parametrize(
    ("format", "extra"),
    [
        ("fp8", 8),
        ("fp8_block", 2 * 4 * 4),
        ("fp8_rowwise", 512 * 4),
        ("nvfp4", 512 * 256 // 16 + 8),
        ("int4_awq", 512 * 2 * 4),
    ],
)
def test_scales_of_each_format(format: str, extra: int) -> None:
    row = WEIGHT_FORMATS[format]
    linear = TensorGroup("x.up_proj.weight", (512, 256), 16, "BF16", "mlp", axis=0, split="plain", linear=True)
    weight, *scales = in_precision([linear], Precision(format, exclude=()))
    assert weight.bytes == 512 * 256 * row.bits // 8
    assert sum(group.bytes for group in scales) == extra


@pytest.mark.parametrize(("format", "kv"), [("fp8", True), ("nvfp4", True), ("int4_awq", False)])
def test_a_planned_format_has_the_tensors_of_its_export(tmp_path: Path, format: str, kv: bool) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", width=128, ffn=256)
    plain = model_from_folder(folder)
    planned = in_precision(plain.groups, Precision(format, group_size=32 if format == "int4_awq" else None))
    Quantizer(folder, format, kv_fp8=kv, scale_type="F32")
    stored = model_from_folder(folder)
    assert stored.facts.prequantized == format and stored.facts.prequantized_kv_cache == ("fp8" if kv else None)
    # two scales a layer of the KV cache are the cache's, not the weights'
    cache = 2 * 4 * stored.facts.layers if kv else 0
    assert sum(group.bytes for group in planned) + cache == sum(group.bytes for group in stored.groups)
    for parallel in (ParallelPlan(2), ParallelPlan(1, 2)):
        parts = [rank_weights(groups, stored.facts, parallel) for groups in (planned, stored.groups)]
        assert parts[0]["attention"] == parts[1]["attention"] and parts[0]["mlp"] == parts[1]["mlp"]
        assert parts[0]["scales"] + cache // parallel.pp == parts[1]["scales"]


def test_exclude_patterns_keep_layers() -> None:
    model = from_config(bare())
    groups = in_precision(
        groups_from_facts(model), Precision("fp8", exclude=("lm_head", "model.layers.0.*", "*down_proj"))
    )
    layers = {(g.pattern, g.dtype): g.layers for g in groups}
    assert layers["model.layers.*.self_attn.q_proj.weight", "BF16"] == (0,)
    assert layers["model.layers.*.self_attn.q_proj.weight", "fp8"] == (1, 2, 3)
    assert layers["model.layers.*.mlp.down_proj.weight", "BF16"] == (0, 1, 2, 3)
    assert ("lm_head.weight", "BF16") in layers and ("model.embed_tokens.weight", "BF16") in layers


def test_kv_heads_are_replicated_when_there_are_fewer_than_ranks() -> None:
    model = from_config(bare(num_key_value_heads=2, head_dim=32))
    key = next(group for group in groups_from_facts(model) if group.pattern.endswith("k_proj.weight"))
    sizes = [rank_bytes(key, model, ParallelPlan(tp), 0) for tp in (1, 2, 4, 8)]
    assert sizes == [key.bytes, key.bytes // 2, key.bytes // 2, key.bytes // 2]
    assert [kv_bytes_per_token(model.kv, "fp8", tp=tp) for tp in (1, 2, 4)] == [512, 256, 256]


def test_the_vocabulary_is_padded_and_a_tied_head_copied_to_the_last_stage() -> None:
    model = from_config(bare(vocab_size=1001, tie_word_embeddings=True))
    groups = groups_from_facts(model)
    embedding = groups[0]
    assert rank_bytes(embedding, model, ParallelPlan(2), 0) == 501 * 256 * 2
    assert "head" not in rank_weights(groups, model, ONE)
    first, last = (rank_weights(groups, model, ParallelPlan(1, 2), stage) for stage in (0, 1))
    assert first["embedding"] == last["head"] == 1001 * 256 * 2 and "embedding" not in last


def test_experts_are_shared_out_whole_or_cut() -> None:
    model = known("Qwen/Qwen3-30B-A3B")
    groups = groups_from_facts(model)
    whole = rank_weights(groups, model, ONE)["experts"]
    for parallel in (ParallelPlan(4), ParallelPlan(4, 1, 2), ParallelPlan(4, 1, 4), ParallelPlan(2, 2, 2)):
        held = [rank_weights(groups, model, parallel, stage)["experts"] for stage in range(parallel.pp)]
        assert sum(held) * parallel.tp == whole


def test_fused_experts_of_gpt_oss_headers() -> None:
    model = known("openai/gpt-oss-120b")
    blocks = TensorInfo("f", "U8", (128, 5760, 90, 16), 0, 128 * 5760 * 90 * 16)
    headers = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": blocks,
        "model.layers.0.mlp.experts.gate_up_proj_scales": TensorInfo("f", "U8", (128, 5760, 90), 0, 128 * 5760 * 90),
    }
    groups = groups_from_headers(headers, model)
    assert all(group.fused and group.experts for group in groups)
    whole, halves = rank_weights(groups, model, ONE), rank_weights(groups, model, ParallelPlan(4, 1, 2))
    assert {part: size // 4 for part, size in whole.items()} == halves


def test_latent_attention_caches_the_latent() -> None:
    model = known("deepseek-ai/DeepSeek-V3")
    assert kv_bytes_per_token(model.kv, "bfloat16") == 61 * (512 + 64) * 2
    assert kv_bytes_per_token(model.kv, "bfloat16", tp=8) == 61 * (512 + 64) * 2
    assert model.parameters == pytest.approx(671e9, rel=1e-3)
    assert active_parameters(model) == pytest.approx(37e9, rel=0.02)


def test_sliding_windows_follow_the_layer_types() -> None:
    model = from_config(
        bare(model_type="olmo3", sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2)
    )
    assert (model.sliding_window, model.window_layers) == (64, 2)
    assert from_config(bare(sliding_window=64, use_sliding_window=False)).sliding_window == 0


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("tie", [True, False])
def test_biases_and_norms_of_heads_are_counted(tmp_path: Path, architecture: str, tie: bool) -> None:
    """The checkpoint's headers, its config.json and intake's record give every rank the same bytes."""
    shape = {"layers": 3, "sliding_window": 64, "max_window_layers": 2, "head_size": 128}
    folder = write_tiny_llama(tmp_path / "model", architecture=architecture, tie=tie, **shape)
    headers = read_headers(folder)
    record = inspect_source("model", tmp_path)
    assert record is not None
    by_config, by_record = from_config(read_config(folder)), model_from_record(record.model).facts
    for model in (by_config, by_record):
        assert model.parameters == sum(info.elements for info in headers.values())
        assert (model.sliding_window, model.window_layers, model.head_size) == (64, 1, 128)
        for parallel in (ONE, ParallelPlan(2), ParallelPlan(1, 3)):
            for stage in range(parallel.pp):
                stored = rank_weights(groups_from_headers(headers, model), model, parallel, stage)
                assert rank_weights(groups_from_facts(model), model, parallel, stage) == stored


def test_stages_hold_every_layer_once() -> None:
    assert [list(stage) for stage in stage_layers(5, 2)] == [[0, 1, 2], [3, 4]]
    model = from_config(bare(num_hidden_layers=5))
    groups = groups_from_facts(model)
    whole = sum(rank_weights(groups, model, ONE).values())
    for pp in (2, 3, 5):
        assert sum(sum(rank_weights(groups, model, ParallelPlan(1, pp), s).values()) for s in range(pp)) == whole


# properties --------------------------------------------------------------------------------------------------------
@st.composite
def models(draw: st.DrawFn) -> Model:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    experts = draw(st.sampled_from([0, 0, 8]))
    changes = {
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_key_value_heads": kv_heads,
        "vocab_size": draw(st.integers(100, 2000)),
        "intermediate_size": 128 * draw(st.integers(1, 8)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
    }
    if experts:
        changes |= {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    return from_config(bare(**changes))


SPLITS = st.sampled_from([ParallelPlan(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2)])
FORMATS = st.sampled_from(sorted(WEIGHT_FORMATS))
CARDS = st.sampled_from([row.name for row in load_hardware().gpus])


@settings(max_examples=60, deadline=None)
@given(models(), FORMATS, SPLITS, CARDS)
def test_every_plan_is_the_sum_of_its_terms(model: Model, format: str, parallel: ParallelPlan, card: str) -> None:
    if parallel.pp > model.layers:
        return
    for plan in _plan(model, card, parallel, Precision(format)):
        assert plan.total == sum(term.bytes for term in plan.terms)
        low, high = plan.bounds
        assert low <= plan.total <= high
        assert plan.pool.bytes == plan.pool.blocks * plan.pool.bytes_per_block and plan.fits


@settings(max_examples=60, deadline=None)
@given(models(), FORMATS, SPLITS, st.integers(1000, 200_000), st.integers(0, 100_000))
def test_more_memory_never_fits_less(model: Model, format: str, parallel: ParallelPlan, mib: int, more: int) -> None:
    if parallel.pp > model.layers:
        return
    small = gpu("h200").model_copy(update={"visible_mib": mib})
    large = gpu("h200").model_copy(update={"visible_mib": mib + more})
    load = fixed(100, 50)
    plans = [_plan(model, card, parallel, Precision(format)) for card in (small, large)]
    for before, after in zip(*plans, strict=True):
        assert after.pool.blocks >= before.pool.blocks
        assert after.fits or not before.fits
    found = [capacity(model, plan, load, SERVING) for plan in plans]
    assert found[1].guaranteed >= found[0].guaranteed and found[1].running >= found[0].running
    assert context_ceiling(model, plans[1], SERVING) >= context_ceiling(model, plans[0], SERVING)


@settings(max_examples=60, deadline=None)
@given(models(), FORMATS, st.sampled_from([1, 2]))
def test_more_ranks_never_hold_more_each(model: Model, format: str, pp: int) -> None:
    if pp > model.layers:
        return
    groups = in_precision(groups_from_facts(model), Precision(format))
    for stage in range(pp):
        sizes = [sum(rank_weights(groups, model, ParallelPlan(tp, pp), stage).values()) for tp in (1, 2, 4, 8)]
        assert sizes == sorted(sizes, reverse=True)
        # what is replicated or padded makes the ranks together hold at least the whole
        assert sizes[1] * 2 >= sizes[0]


@settings(max_examples=60, deadline=None)
@given(models())
def test_kv_grows_with_bits(model: Model) -> None:
    assert 2 * kv_bytes_per_token(model.kv, "fp8") == kv_bytes_per_token(model.kv, "float16")
    assert kv_bytes_per_token(model.kv, "nvfp4") < kv_bytes_per_token(model.kv, "fp8")


# gate, host, sharing, chart ----------------------------------------------------------------------------------------
def test_the_gate_lets_five_per_cent_pass() -> None:
    (plan,) = _plan(llama_70b(), "b200")
    assert compare(plan, plan.total).passed
    assert gate(plan, int(plan.total * 1.0499)).difference == pytest.approx(0.0499, abs=1e-4)
    assert gate(plan, int(plan.total * 0.9501)).passed
    for factor in (1.06, 0.94):
        with pytest.raises(GateFailed) as caught:
            gate(plan, int(plan.total * factor))
        assert caught.value.code == "TF-PLN-010" and caught.value.exit_code == 1
        assert caught.value.numbers["planned"] == plan.total and caught.value.remedies


def test_a_plan_that_does_not_fit_says_by_how_much() -> None:
    (plan,) = _plan(llama_70b(), "l4")
    assert not plan.fits and plan.pool.blocks == 0
    assert plan.free == plan.capacity - plan.total < -plan.of("weights") + plan.capacity


def test_host_memory_and_disk() -> None:
    footprint = Footprint(7_000_000_000, layer=200_000_000, table=130_000_000, vocab=32_000)
    plan = plan_host(footprint, "bfloat16", 4_000_000_000)
    totals = plan.totals()
    assert totals["quantize"] == footprint.whole_bytes() == 44_800_000_000 + 1536 * 2**20
    assert totals["quantize_by_layer"] == footprint.by_layer_bytes < 6 * 2**30
    assert totals["build"] == 28_000_000_000 and plan.build[0].low == 21_000_000_000
    assert totals["disk"] == 14_000_000_000 + 4 * 4_000_000_000


def test_models_that_share_a_gpu_get_bytes() -> None:
    card = gpu("h100")
    small = from_config(bare())
    tenants = [tenant("a", _plan(small, card)), tenant("b", _plan(small, card), weight=3)]
    first, second = share_gpu(tenants, card)
    assert first.fixed + first.pool + second.fixed + second.pool <= card.visible_bytes * 0.95
    assert second.pool == pytest.approx(3 * first.pool, rel=1e-3)
    assert first.pool % tenants[0].bytes_per_block == 0
    error = refusal(share_gpu, [Tenant("big", card.visible_bytes, 1)], card)
    assert error.code == "TF-PLN-012"


def test_the_bar_shows_the_shares() -> None:
    (plan,) = _plan(llama_70b(), "b200")
    text = bar(plan, 50)
    assert text.count("W") - 1 == round(plan.of("weights") / plan.capacity * 50)
    assert text[0] == "[" and text[51] == "]"
    (over,) = _plan(llama_70b(), "l4")
    assert "of the GPU" in bar(over)


def test_the_chart_is_an_svg_and_the_same_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plans = _plan(llama_70b(), "h200", ParallelPlan(1, 2))
    write_svg(plans, tmp_path / "one.svg", "a plan")
    write_svg(plans, tmp_path / "two.svg", "a plan")
    assert "<svg" in (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    error = refusal(write_svg, plans, tmp_path / "file" / "three.svg", "a plan")
    assert error.code == "TF-PLN-021"


@pytest.mark.parametrize("pool", [None, 2**30])
def test_the_range_of_the_pool_follows_the_ranges_beside_it(pool: int | None) -> None:
    model = llama_70b()
    serving = Serving(64, 4096, 8192, pool_bytes=pool)
    (plan,) = plan_memory(model, groups_from_facts(model), Precision(), ParallelPlan(), serving, gpu("b200"))
    term = next(item for item in plan.terms if item.kind == "kv")
    rest_low = sum(item.low for item in plan.terms if item.kind != "kv")
    rest_high = sum(item.high for item in plan.terms if item.kind != "kv")
    if pool is not None:
        assert term.low == term.bytes == term.high
    else:
        assert term.low < term.bytes < term.high
        assert term.high == pytest.approx(0.9 * (plan.capacity - rest_low), rel=1e-3)
        assert term.low == pytest.approx(0.9 * (plan.capacity - rest_high), rel=1e-3)
    low, high = plan.bounds
    assert low <= plan.total <= high and high - low < rest_high - rest_low + 1 + (pool or 0)
