"""How many requests fit: KV blocks against length distributions, prefix sharing, precision, the context ceiling.

Policy: a request holds whole blocks. Two figures are given: what a scheduler that never evicts can admit (every
request reserves its full length) and what is held on average while answers grow. Requests in flight are weighted
by how long they stay (their answer's length), not by how often they arrive: long answers fill the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from builder.planner.hardware import Gpu
from builder.planner.memory import activation_terms, plan_memory
from builder.planner.precision import KV_BITS
from builder.planner.types import ALONE, Beside, MemoryPlan, ParallelPlan, Precision, Serving, Workload
from builder.planner.weights import TensorGroup
from trtforge.models.kv import kv_bytes_per_token
from trtforge.models.kv_window import KvWindows
from trtforge.models.record import Model
from trtforge.tables import architecture_table


@dataclass(frozen=True)
class Capacity:
    """Requests that one replica can hold.

    ``guaranteed``: at full length each; ``expected``: at the average length while answers grow; ``longest``: all of
    the workload's longest; each is bounded by the pool alone. ``running`` is ``guaranteed`` under max_batch_size.
    """

    pool_tokens: int
    tokens_reserved: float
    tokens_held: float
    guaranteed: int
    expected: int
    longest: int
    running: int
    binding: str


def replica_tokens(memory: Sequence[MemoryPlan]) -> int:
    """Tokens that a replica's pools hold: those of its tightest stage."""
    return min(plan.pool.tokens for plan in memory)


def _windows(model: Model, serving: Serving) -> KvWindows:
    return serving.windows or KvWindows((0,) * model.layers)


def _held(windows: KvWindows, tokens: Any, serving: Serving) -> Any:
    """Tokens of pool that requests take: whole blocks, on average over the layers."""
    lengths = np.asarray(tokens, dtype=np.float64)
    return windows.layer_tokens(lengths, serving.block_size, serving.max_num_tokens) / len(windows.windows)


def _demand(model: Model, workload: Workload, serving: Serving, common: int) -> tuple[float, float, float]:
    """Pool tokens of a request: reserved and held on average, and of the longest; kept with the workload.

    They do not depend on the split or the precision, and a search asks for them thousands of times.
    """
    windows, block = _windows(model, serving), serving.block_size
    key = (windows.spans, serving.max_num_tokens, block, common)
    if key not in workload.demands:
        isl, osl, share = workload.table
        stays = share * osl / float(np.dot(share, osl))
        reserved = np.maximum(_held(windows, isl + osl, serving) - common, block)
        held = np.maximum(_held(windows, isl + osl / 2, serving) - common, block)
        most = max(float(_held(windows, workload.longest, serving)) - common, block)
        workload.demands[key] = (float(np.dot(stays, reserved)), float(np.dot(stays, held)), most)
    found: tuple[float, float, float] = workload.demands[key]
    return found


def _whole(room: float, each: float) -> int:
    """Whole requests in ``room``; an average a hair over its true value loses none."""
    return math.floor(room / each * (1 + 1e-12))


def capacity(
    model: Model, memory: Sequence[MemoryPlan], workload: Workload, serving: Serving, *, shared: bool = True
) -> Capacity:
    """Requests that a replica holds at once.

    Args:
        shared: whether the workload's common prefix is stored once (prefix cache); whole blocks of it are shared.
    """
    block = serving.block_size
    pool = replica_tokens(memory)
    common = workload.shared_prefix // block * block if shared else 0
    room = max(pool - common, 0)
    reserved, held, most = _demand(model, workload, serving, common)
    guaranteed, expected, longest = (_whole(room, each) for each in (reserved, held, most))
    running = min(guaranteed, serving.max_batch_size)
    binding = "KV pool" if guaranteed < serving.max_batch_size else "build.limits.max_batch_size"
    return Capacity(pool, reserved, held, guaranteed, expected, longest, running, binding)


def context_ceiling(model: Model, memory: Sequence[MemoryPlan], serving: Serving) -> int:
    """The longest context of a single request: what the pool holds alone, at most what the model was trained for."""
    windows, pool = _windows(model, serving), replica_tokens(memory)
    return windows.longest(pool, serving.block_size, serving.max_num_tokens, model.usable_positions)


@dataclass(frozen=True)
class PrefixSaving:
    """KV bytes of many requests with a common prefix, stored each alone and shared; ``saved`` is a share of 1."""

    alone: int
    shared: int
    saved: float


def prefix_saving(prefix: int, rest: int, requests: int, bytes_per_token: int) -> PrefixSaving:
    """What a prefix cache saves: ``requests`` of ``prefix`` common tokens and ``rest`` of their own each.

    2,000 common, 500 own, 1,000 requests at 2 x 80 layers x 8,192 x 2 B: 6.6 TB alone, 1.3 TB shared, 79.9 % saved.
    Source: RadixAttention, https://arxiv.org/abs/2312.07104
    """
    alone = requests * (prefix + rest) * bytes_per_token
    shared = (prefix + requests * rest) * bytes_per_token
    return PrefixSaving(alone, shared, 1 - shared / alone if alone else 0.0)


@dataclass(frozen=True)
class KvTrade:
    """One KV format: bytes a token of the whole model, pool tokens, requests of a replica, what is said of a kernel."""

    kv: str
    bytes_per_token: int
    pool_tokens: int
    requests: int
    kernel: str = "yes"


def kv_trade(
    model: Model,
    weights: Sequence[TensorGroup],
    precision: Precision,
    parallel: ParallelPlan,
    serving: Serving,
    gpu: Gpu,
    workload: Workload,
    beside: Beside = ALONE,
) -> list[KvTrade]:
    """What each KV format buys on the same GPUs, widest first; formats that the GPU lacks only if the plan has them."""
    row = architecture_table().row(gpu.arch)
    stated = {} if row is None else row.kv_cache
    narrow = [name for name, bits in KV_BITS.items() if bits < 16 and stated.get(name, "no") != "no"]
    rows = []
    for kv in dict.fromkeys((precision.base, *narrow, precision.kv)):
        chosen = replace(precision, kv=kv)
        memory = plan_memory(model, weights, chosen, parallel, serving, gpu, beside)
        found = capacity(model, memory, workload, serving)
        kernel = "yes" if kv == precision.base else stated.get(kv, "no")
        rows.append(KvTrade(kv, kv_bytes_per_token(model.kv, kv), found.pool_tokens, found.guaranteed, kernel))
    return rows


@dataclass(frozen=True)
class Admission:
    """Settings of a recipe that follow from the plan; keys as in ``build``."""

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    kv_memory: int

    def recipe(self) -> dict[str, object]:
        """The keys as a recipe writes them."""
        return {
            "build.limits.max_batch_size": self.max_batch_size,
            "build.limits.max_num_tokens": self.max_num_tokens,
            "build.limits.max_seq_len": self.max_seq_len,
            "build.kv_cache.memory": f"{self.kv_memory // 2**20}MiB",
        }


def admission(
    model: Model,
    memory: Sequence[MemoryPlan],
    workload: Workload,
    serving: Serving,
    precision: Precision,
    parallel: ParallelPlan,
    *,
    most: int = 2048,
) -> Admission:
    """Limits that use the pool without promising more than it holds.

    max_batch_size: requests that fit at full length (at most ``most``, TensorRT-LLM's default); max_num_tokens: at
    least the recipe's, a row for every running request and its draft tokens, in steps of 256; max_seq_len: the
    workload's longest request in whole blocks, under the context ceiling; memory: the smallest pool, less what larger
    steps need beyond the memory that stayed free.
    """
    found = capacity(model, memory, workload, serving)
    batch = max(min(found.guaranteed, most), 1)
    rows = batch * (1 + serving.draft_tokens)
    tokens = max(serving.max_num_tokens, math.ceil(rows / 256) * 256)
    block = serving.block_size
    longest = math.ceil(workload.longest / block) * block
    larger = replace(serving, max_batch_size=batch, max_num_tokens=tokens)
    pools = []
    for plan in memory:
        last = plan.stage == parallel.pp - 1
        step = sum(term.bytes for term in activation_terms(model, precision, parallel, larger, last=last))
        growth = step - plan.of("activations") - max(plan.free, 0)
        pools.append(plan.pool.bytes - max(growth, 0))
    pool = max(min(pools), 0)
    ceiling = max(context_ceiling(model, memory, serving), 1)
    return Admission(batch, tokens, min(longest, ceiling), pool // 2**20 * 2**20)
