"""Capacity: lengths, traces, sharing, trade-offs, admission and fleets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner import workload
from builder.planner.capacity import admission, capacity, context_ceiling, kv_trade, prefix_saving, replica_tokens
from builder.planner.fleet import size_fleet
from builder.planner.hardware import gpu
from builder.planner.memory import plan_memory
from builder.planner.model import from_config
from builder.planner.types import MemoryPlan, ParallelPlan, Precision, Serving
from builder.planner.weights import groups_from_facts
from tests.builder.planner.models import bare, llama_70b
from tests.support.refusals import refusal
from trtforge.models.kv_window import KvWindows
from trtforge.models.record import Model

SERVING = Serving(1024, 4096, 8192, block_size=32)


def _memory(model: Model, pool_tokens: int, serving: Serving = SERVING) -> tuple[MemoryPlan, ...]:
    """A plan whose pool holds exactly so many tokens."""
    per_token = 2 * model.layers * model.kv_heads * model.head_size * 2
    chosen = Serving(
        serving.max_batch_size,
        serving.max_num_tokens,
        serving.max_seq_len,
        serving.block_size,
        pool_tokens * per_token,
        draft_tokens=serving.draft_tokens,
    )
    return plan_memory(model, groups_from_facts(model), Precision(), ParallelPlan(), chosen, gpu("h200"))


def test_requests_take_whole_blocks() -> None:
    model = from_config(bare())
    memory = _memory(model, 3200)
    assert replica_tokens(memory) == 3200
    found = capacity(model, memory, workload.fixed(60, 37), SERVING)
    # 97 tokens are 4 blocks of 32; 60 + 18.5 while answers grow are 3
    assert found.tokens_reserved == 128 and found.guaranteed == 25 == found.longest
    assert found.tokens_held == 96 and found.expected == 33
    assert found.running == 25 and found.binding == "KV pool"
    capped = capacity(model, memory, workload.fixed(60, 37), Serving(8, 4096, 8192))
    assert capped.running == 8 and capped.binding == "build.limits.max_batch_size"


def test_long_answers_fill_the_pool() -> None:
    model = from_config(bare())
    memory = _memory(model, 32_000)
    load = workload.histogram([(32, 32, 1.0), (32, 992, 1.0)])
    found = capacity(model, memory, load, SERVING)
    # in flight 31 of 32 requests are of the long kind
    weight = 992 / 1024
    assert found.tokens_reserved == pytest.approx(64 * (1 - weight) + 1024 * weight)
    assert found.longest <= found.guaranteed <= found.expected


def test_a_common_prefix_is_stored_once() -> None:
    model = from_config(bare())
    memory = _memory(model, 3200)
    load = workload.fixed(96, 32, shared_prefix=70)
    alone = capacity(model, memory, load, SERVING, shared=False)
    together = capacity(model, memory, load, SERVING)
    # two whole blocks of the 70 tokens are shared: (3200 - 64) / (128 - 64)
    assert alone.guaranteed == 25 and together.guaranteed == 49
    assert prefix_saving(0, 10, 3, 7).saved == 0


def test_the_context_ceiling() -> None:
    model = from_config(bare(max_position_embeddings=4096))
    assert context_ceiling(model, _memory(model, 1600), SERVING) == 1600
    assert context_ceiling(model, _memory(model, 160_000), SERVING) == 4096
    half = replace(SERVING, windows=KvWindows((64, 0) * 2))
    # two layers keep 3 blocks of 32 tokens at most, which leaves 3104 of 2 x 1600 to each of the others
    assert context_ceiling(model, _memory(model, 1600), half) == 3104
    assert context_ceiling(model, _memory(model, 96), replace(SERVING, windows=KvWindows((64,) * 4))) == 4096


def test_windows_bound_what_requests_take() -> None:
    model, load = from_config(bare()), workload.fixed(900, 100)
    memory = _memory(model, 32_000)
    assert capacity(model, memory, load, SERVING).tokens_reserved == 1024
    windows = replace(SERVING, windows=KvWindows((64, 0) * 2))
    found = capacity(model, memory, load, windows)
    assert found.tokens_reserved == (1024 + 96) / 2 and found.guaranteed == 57


def test_kv_formats_trade_bytes_for_requests() -> None:
    model = llama_70b()
    groups = groups_from_facts(model)
    load = workload.fixed(2048, 512)
    rows = {row.kv: row for row in kv_trade(model, groups, Precision(), ParallelPlan(4), SERVING, gpu("h200"), load)}
    assert rows["bfloat16"].bytes_per_token == 327_680 == 2 * rows["fp8"].bytes_per_token
    assert rows["fp8"].requests == pytest.approx(2 * rows["bfloat16"].requests, abs=1)
    assert set(rows) == {"bfloat16", "fp8"}, "Hopper has no kernel for an NVFP4 cache"
    new = {row.kv: row for row in kv_trade(model, groups, Precision(), ParallelPlan(4), SERVING, gpu("b200"), load)}
    assert new["bfloat16"].pool_tokens < new["fp8"].pool_tokens < new["nvfp4"].pool_tokens
    old = kv_trade(model, groups, Precision(), ParallelPlan(4), SERVING, gpu("a100"), load)
    assert [(row.kv, row.kernel) for row in old] == [("bfloat16", "yes"), ("fp8", "disputed")]


def test_admission_settings_hold_what_they_promise() -> None:
    model = from_config(bare())
    serving = Serving(8, 100, 8192, draft_tokens=3)
    memory = _memory(model, 320_000, serving)
    load = workload.fixed(60, 37)
    found = admission(model, memory, load, serving, Precision(), ParallelPlan())
    assert found.max_batch_size == 2048, "TensorRT-LLM's default is the most"
    assert found.max_num_tokens == 2048 * 4 and found.max_seq_len == 128
    assert found.kv_memory % 2**20 == 0 and found.kv_memory <= memory[0].pool.bytes
    assert set(found.recipe()) == {
        "build.limits.max_batch_size",
        "build.limits.max_num_tokens",
        "build.limits.max_seq_len",
        "build.kv_cache.memory",
    }
    small = admission(model, _memory(model, 1280), load, Serving(8, 4096, 8192), Precision(), ParallelPlan())
    assert small.max_batch_size == 10 and small.max_num_tokens == 4096


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 3000), st.integers(1, 3000), st.floats(0.5, 0.999))
def test_admitted_limits_still_fit(batch: int, isl: int, osl: int, fraction: float) -> None:
    model = llama_70b()
    groups, split, card = groups_from_facts(model), ParallelPlan(4), gpu("h100")
    serving = Serving(batch, 2048, 8192, free_fraction=fraction)
    memory = plan_memory(model, groups, Precision(), split, serving, card)
    found = admission(model, memory, workload.fixed(isl, osl), serving, Precision(), split)
    chosen = Serving(found.max_batch_size, found.max_num_tokens, found.max_seq_len, 32, found.kv_memory)
    assert all(plan.fits for plan in plan_memory(model, groups, Precision(), split, chosen, card))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000), st.floats(0.1, 10)), min_size=1, max_size=6),
    st.integers(32, 500_000),
    st.integers(0, 100_000),
)
def test_capacity_is_monotonic_and_safe(rows: list[tuple[int, int, float]], tokens: int, more: int) -> None:
    model = from_config(bare(num_hidden_layers=1))
    load = workload.histogram(rows)
    assert math.isclose(sum(item.share for item in load.lengths), 1)
    small, large = (capacity(model, _memory(model, size), load, SERVING) for size in (tokens, tokens + more))
    assert small.guaranteed <= large.guaranteed and small.expected <= large.expected
    for found in (small, large):
        assert found.longest <= found.guaranteed <= found.expected
        assert found.longest * load.longest <= found.pool_tokens
        assert found.running <= SERVING.max_batch_size


# lengths -----------------------------------------------------------------------------------------------------------
def test_traces_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(
        "isl,osl\n# a comment\n512,128\n512 128\n"
        '{"isl": 100, "osl": 50, "timestamp": 0}\n\n{"input_length": 100, "output_length": 50, "timestamp": 2000}\n'
        "1024, 1, 4000  # the last\n",
        encoding="utf-8",
    )
    load = workload.trace(path)
    assert load.kind == "trace" and load.source == str(path)
    assert [(item.isl, item.osl, item.share) for item in load.lengths] == [
        (100, 50, 0.4),
        (512, 128, 0.4),
        (1024, 1, 0.2),
    ]
    assert load.rate == pytest.approx(0.5), "3 requests in 4 s are two intervals"
    assert load.mean_isl == pytest.approx(449.6) and load.longest == 1025
    assert [workload.percentile(load, share) for share in (0.4, 0.5, 0.99)] == [150, 640, 1025]
    assert workload.trace(path, rate=7.0).rate == 7.0


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("512", "1 fields"),
        ("512,128,0,4", "4 fields"),
        ("many,128", "no numbers"),
        ("512,-1", "osl must be"),
        ("0,128", "isl must be"),
        ('{"isl": 512}', "no isl and osl"),
        ('{"isl": 512, "osl"', "no JSON"),
        ('{"isl": true, "osl": 1}', "isl must be"),
        ('{"isl": 5.5, "osl": 1}', "isl must be"),
        ('{"isl": 5, "osl": 1, "timestamp": "now"}', "timestamp"),
        ('{"isl": 5, "osl": 1, "timestamp": Infinity}', "timestamp"),
        ('{"isl": 5, "osl": 1, "timestamp": NaN}', "timestamp"),
        ("5,1,inf", "timestamp"),
        (f"{10**12},1", "isl must be"),
        ("[512, 128]", "no numbers"),
    ],
)
def test_a_line_that_does_not_parse_is_named(tmp_path: Path, line: str, word: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"512,128\n\n{line}\n", encoding="utf-8")
    error = refusal(workload.trace, path)
    assert error.code == "TF-PLN-006" and error.numbers["line"] == 3
    assert "line 3" in error.message and word in error.message


@pytest.mark.parametrize("first", [b"x512,128", b"prompt,answer", b"hello", b"\xff\xfe5\x001\x00"])
def test_a_broken_first_line_is_no_header(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(first + b"\n512,128\n")
    error = refusal(workload.trace, path)
    assert error.code == "TF-PLN-006" and error.numbers["line"] == 1


def test_bytes_that_are_no_text_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"512,128\n5\xff,1\n")
    error = refusal(workload.trace, path)
    assert error.numbers["line"] == 2 and "UTF-8" in error.message


def test_marks_headers_and_hashes_in_strings(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b'\xef\xbb\xbf{"isl": 5, "osl": 1, "id": "a#1"}\n')
    assert workload.trace(path).lengths[0].isl == 5
    path.write_text("timestamp,osl,isl\n0,128,512\n500,128,512\n", encoding="utf-8")
    load = workload.trace(path)
    assert (load.lengths[0].isl, load.lengths[0].osl, load.rate) == (512, 128, 2.0)


def test_refusals_of_loads_say_what_works(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("512,128\n", encoding="utf-8")
    for call, arguments, word in (
        (workload.parse_lengths, ("oops",), "512+128:3,4096+512:1"),
        (workload.parse_lengths, (str(tmp_path / "rows"),), "--trace"),
        (workload.trace, (tmp_path / "absent",), "--trace"),
        (workload.fixed, (0, 1), "--isl"),
    ):
        assert any(word in remedy for remedy in refusal(call, *arguments).remedies)
    (tmp_path / "burst").write_text("1,1,0\n1,1,1e-10\n", encoding="utf-8")
    assert any("timestamps" in text for text in refusal(workload.trace, tmp_path / "burst").remedies)
    assert workload.trace(tmp_path / "burst", rate=3.0).rate == 3.0
    assert "negative" in refusal(workload.fixed, 10, 10, shared_prefix=-1).message
    for rate in (float("nan"), float("inf"), 1e300, 0.0):
        error = refusal(workload.fixed, 10, 10, rate=rate)
        assert any("--rate" in remedy for remedy in error.remedies) and len(error.message) < 120


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.1, 10)), min_size=1, max_size=20))
def test_demand_is_the_average_over_requests_in_flight(rows: list[tuple[int, int, float]]) -> None:
    model = from_config(bare(num_hidden_layers=1, max_position_embeddings=16384))
    load = workload.histogram(rows)
    found = capacity(model, _memory(model, 320_000), load, SERVING)
    weight = sum(item.share * item.osl for item in load.lengths)
    blocks = sum(item.share * item.osl * math.ceil((item.isl + item.osl) / 32) * 32 for item in load.lengths) / weight
    assert found.tokens_reserved == pytest.approx(blocks)
    assert workload.percentile(load, 1.0) == load.longest


def test_other_bad_loads_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n", encoding="utf-8")
    for call, argument in (
        (workload.trace, tmp_path / "empty"),
        (workload.trace, tmp_path / "absent"),
        (workload.trace, tmp_path),
        (workload.histogram, []),
        (workload.histogram, [(1, 1, -1.0)]),
        (workload.parse_lengths, "512+128:3,oops"),
        (workload.parse_lengths, ""),
    ):
        assert refusal(call, argument).code == "TF-PLN-005"
    assert refusal(workload.fixed, 0, 10).code == "TF-PLN-005"
    assert refusal(workload.fixed, 10, 10, shared_prefix=11).code == "TF-PLN-005"
    assert refusal(workload.fixed, 10, 10, rate=0.0).code == "TF-PLN-005"


def test_a_histogram_on_the_command_line() -> None:
    assert workload.parse_lengths("512+128:3, 4096+512") == [(512, 128, 3.0), (4096, 512, 1.0)]


# fleets ------------------------------------------------------------------------------------------------------------
@given(st.floats(0.1, 1e4), st.floats(1e-3, 10), st.integers(1, 512), st.floats(1e-3, 10), st.floats(0, 1))
def test_fleets_hold_the_load(rate: float, latency: float, batch: int, batch_time: float, margin: float) -> None:
    plain, spare = (size_fleet(rate, latency, batch, batch_time, margin=m) for m in (0.0, margin))
    assert spare.replicas >= plain.replicas >= 1
    assert plain.busy <= 1 + 1e-6
    assert plain.replicas * batch * (1 + 1e-6) >= plain.in_flight


def test_bad_fleets_are_refused() -> None:
    assert refusal(size_fleet, 0, 1, 1, 1).code == "TF-PLN-007"
    assert refusal(size_fleet, 1, 1, 1, 1, margin=-0.1).code == "TF-PLN-007"
