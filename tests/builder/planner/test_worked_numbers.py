"""The literature's worked numbers of memory, capacity, batching, communication and hardware come out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.planner.capacity import prefix_saving
from builder.planner.communication import all_to_all, point_to_point, ring_all_reduce
from builder.planner.fleet import (
    in_flight,
    size_fleet,
)
from builder.planner.hardware import gpu, link
from builder.planner.memory import pool_bytes
from builder.planner.precision import kv_bits, weight_bytes
from builder.planner.weights import groups_from_facts
from tests.builder.planner.models import llama_70b
from trtforge.models.kv import kv_bytes_per_token, pool_blocks

GB = 1e9


def test_kv_bytes_of_llama_3_70b() -> None:
    assert kv_bytes_per_token(llama_70b().kv, "float16") == 327_680


def test_eight_h100_hold_twelve_long_contexts() -> None:
    model = llama_70b()
    memory = 8 * gpu("h100-sxm").memory_gib * 2**30
    weights = sum(group.bytes for group in groups_from_facts(model))
    request = 131_072 * kv_bytes_per_token(model.kv, "float16")
    assert memory / GB == pytest.approx(687.2, abs=0.05)
    assert weights / GB == pytest.approx(141.2, rel=1e-3)
    assert request / GB == pytest.approx(42.9, abs=0.05)
    assert (memory - weights - 20 * GB) // request == 12


def test_kv_of_4096_tokens_by_heads_and_format() -> None:
    model = llama_70b()
    many = replace(model, kv_heads=64)
    assert 4096 * kv_bytes_per_token(many.kv, "float16") / GB == pytest.approx(10.7, abs=0.05)
    assert 4096 * kv_bytes_per_token(model.kv, "float16") / GB == pytest.approx(1.3, abs=0.05)
    assert 4096 * kv_bytes_per_token(many.kv, "int4") / GB == pytest.approx(2.7, abs=0.05)


@pytest.mark.parametrize(
    ("weights", "cache", "weight_gb", "cache_gb", "requests"),
    [("float16", "float16", 35.0, 2.7, 16), ("int4", "int8", 8.75, 1.3, 53)],
)
def test_four_h100_by_precision(weights: str, cache: str, weight_gb: float, cache_gb: float, requests: int) -> None:
    held = weight_bytes(70e9, weights) / 4
    request = 4096 * kv_bytes_per_token(replace(llama_70b(), kv_heads=64).kv, cache, tp=4)
    assert held / GB == pytest.approx(weight_gb)
    assert request / GB == pytest.approx(cache_gb, abs=0.05)
    assert (80 * GB - held) // request == requests


@pytest.mark.parametrize(("format", "size"), [("float32", 28.0), ("float16", 14.0), ("int8", 7.0), ("int4", 3.5)])
def test_weights_of_seven_billion(format: str, size: float) -> None:
    assert weight_bytes(7e9, format) / GB == pytest.approx(size)


def test_nvfp4_takes_four_and_a_half_bits() -> None:
    assert kv_bits("nvfp4") == 4.5
    assert weight_bytes(7e9, "nvfp4") == 7e9 * 4.5 / 8


def test_tensorrt_llms_pool_rule() -> None:
    assert pool_bytes(100 * GB) == 90 * GB
    assert pool_bytes(100 * GB, 0.9, max_tokens=1000, bytes_per_token=1_000_000) == 1 * GB
    # the documentation's log: 63.44 GiB of blocks hold 259,840 tokens (256 KiB a token, blocks of 64)
    per_token = 2 * 32 * 32 * 128
    assert pool_blocks(int(63.44 * 2**30), per_token, 64) * 64 == 259_840
    assert 259_840 * per_token / 2**30 == pytest.approx(63.44, abs=0.005)


def test_b200_with_80_gb_left() -> None:
    assert gpu("b200").memory_gib == 180
    assert pool_bytes((180 - 100) * GB, 0.8) == 64 * GB


def test_prefix_cache_of_a_thousand_users() -> None:
    saving = prefix_saving(2000, 500, 1000, 2 * 80 * 8192 * 2)
    assert saving.alone / 1e12 == pytest.approx(6.6, abs=0.05)
    assert saving.shared / 1e12 == pytest.approx(1.3, abs=0.05)
    assert saving.saved == pytest.approx(0.799, abs=5e-4)


def test_littles_law() -> None:
    assert in_flight(1000, 0.1) == 100
    fleet = size_fleet(1000, 0.1, 8, 0.080)
    assert (fleet.by_throughput, fleet.by_concurrency, fleet.replicas) == (10, 13, 13)
    assert fleet.busy == pytest.approx(0.769, abs=5e-4)


def test_communication_formulas() -> None:
    # 8 ranks, 16 MB over 100 GB/s with 1 us: 14 us of latency and 280 us on the wire
    assert ring_all_reduce(8, 16e6, 100e9, 1e-6) == pytest.approx(14e-6 + 2 * 7 / 8 * 16e6 / 100e9)
    assert point_to_point(16e6, 100e9, 1e-6) == pytest.approx(161e-6)
    assert all_to_all(8, 16e6, 100e9, 1e-6) == pytest.approx(7 * (1e-6 + 2e6 / 100e9))
    assert ring_all_reduce(1, 16e6, 100e9, 1e-6) == 0 == all_to_all(1, 16e6, 100e9, 1e-6)


@pytest.mark.parametrize(
    ("name", "bandwidth", "latency"),
    [
        ("nvlink4", 900 * GB, 500e-9),
        ("pcie5", 64 * GB, 1e-6),
        ("ib-hdr", 25 * GB, 7e-6),
        ("ethernet-100g", 12.5 * GB, 50e-6),
    ],
)
def test_links(name: str, bandwidth: float, latency: float) -> None:
    row = link(name)
    assert row.bandwidth == pytest.approx(bandwidth) and row.latency == pytest.approx(latency)


@pytest.mark.parametrize(
    ("name", "gigabytes", "terabytes_a_second"),
    [("h100-sxm", 80, 3.35), ("a100-80gb", 80, 2.04), ("h200", 141, 4.8), ("b200", 180, None)],
)
def test_gpus(name: str, gigabytes: float, terabytes_a_second: float | None) -> None:
    card = gpu(name)
    assert card.memory_gib == gigabytes
    if terabytes_a_second is not None:
        assert card.bandwidth / 1e12 == pytest.approx(terabytes_a_second, abs=0.005)


def test_formats_by_generation() -> None:
    assert not gpu("a100").executes("fp8") and gpu("a100").executes("int8")
    for name in ("l4", "l40s", "h100", "h200", "b200", "gb200", "rtx-pro-6000"):
        assert gpu(name).executes("fp8")
    assert [row for row in ("l40s", "h100", "h200") if gpu(row).executes("fp4")] == []
    assert all(gpu(name).executes("fp4") for name in ("b200", "gb200", "rtx-pro-6000"))


def test_parameters_of_known_models() -> None:
    assert llama_70b().parameters == 70_553_706_496
