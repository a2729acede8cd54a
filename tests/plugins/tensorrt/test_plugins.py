"""The plugins under the C++ harness: fields, shapes, formats, aliases, serialization, enqueue on a CPU."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import reference
from plugins.cuda.build import build_shim_library
from plugins.cuda.library import CudaLibrary
from plugins.structs import arguments
from plugins.trees import TreeShape, new_state, static_tree
from tests.plugins.batches import TOLERANCE, Batch, bits, make_batch, random_tree
from tests.plugins.tensorrt import harness as h
from tests.plugins.tensorrt.harness import Harness, Plugin
from trtforge.native import ops

RANDOM = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
ATTENTION = {"num_heads": 8, "num_kv_heads": 2, "head_size": 64}
TREE = {"top_k": 3, "expand": 2, "levels": 3, "total": 8}
MOVE = {"num_kv_heads": 2, "head_size": 64, "num_pools": 2}


@pytest.fixture(scope="session")
def kernels() -> CudaLibrary:
    """The launchers under the host shim, called without the TensorRT layer."""
    return CudaLibrary(build_shim_library().library)


def i32(name: str, value: Any, length: int | None = None) -> tuple[str, int, Any, int | None]:
    return name, h.FIELD_INT32, value, length


def fields(**values: int) -> list[tuple[str, int, Any, int | None]]:
    return [i32(name, value) for name, value in values.items()]


# --- Creators and fields ------------------------------------------------------------------------------------


def test_creators(harness: Harness) -> None:
    assert [creator[:3] for creator in harness.creators] == [
        [op, "2" if op == "PagedAttention" else "1", "trtforge"]
        for op in ("PagedAttention", "EagleTreeBuild", "EagleAccept", "PagedKVMove")
    ]
    assert all(creator[3] == "PLUGIN CREATOR_V3ONE" for creator in harness.creators)
    names = harness.field_names("PagedAttention")
    assert names["head_size"] == h.FIELD_INT32 and names["scale"] == h.FIELD_FLOAT32


REFUSED = [
    ("PagedAttention", fields(**ATTENTION, window=4), "'window' is unknown; the fields are num_heads,"),
    ("PagedAttention", fields(num_heads=8, num_kv_heads=2), "'head_size' is missing; it must be from 64 to 256"),
    ("PagedAttention", [*fields(**ATTENTION), i32("num_heads", 8)], "'num_heads' is given twice"),
    ("PagedAttention", [("num_heads", h.FIELD_INT64, 8, None)], "'num_heads' is INT64; it must be INT32"),
    ("PagedAttention", [("num_heads", h.FIELD_FLOAT32, 8.0, None)], "'num_heads' is FLOAT32; it must be INT32"),
    ("PagedAttention", [*fields(**ATTENTION), i32("scale", 1)], "'scale' is INT32; it must be FLOAT32"),
    ("PagedAttention", [i32("num_heads", [8, 8])], "'num_heads' has 2 values; it must have one"),
    ("PagedAttention", [i32("num_heads", 8, 0)], "'num_heads' has 0 values"),
    ("PagedAttention", fields(**ATTENTION | {"head_size": 60}), "'head_size' is 60; it must be from 64 to 256"),
    ("PagedAttention", fields(**ATTENTION | {"head_size": 66}), "a multiple of 8"),
    ("PagedAttention", fields(**ATTENTION | {"head_size": 264}), "'head_size' is 264"),
    ("PagedAttention", fields(**ATTENTION | {"num_kv_heads": 3}), "num_heads 8 is no multiple of num_kv_heads 3"),
    ("PagedAttention", fields(num_heads=129, num_kv_heads=1, head_size=64), "at most 128 may share one"),
    ("PagedAttention", fields(**ATTENTION, has_scales=2), "'has_scales' is 2; it must be from 0 to 1"),
    ("PagedAttention", fields(**ATTENTION, sliding_window=-1), "'sliding_window' is -1"),
    (
        "PagedAttention",
        [*fields(**ATTENTION), ("soft_cap", h.FIELD_FLOAT32, math.nan, None)],
        "'soft_cap' is nan",
    ),
    ("EagleTreeBuild", fields(**TREE, level=3), "level 3 is not below levels 3"),
    ("EagleTreeBuild", fields(**TREE | {"total": 65}, level=0), "'total' is 65; it must be from 2 to 64"),
    ("EagleAccept", fields(total=0), "'total' is 0"),
    ("PagedKVMove", fields(**MOVE | {"num_pools": 0}), "'num_pools' is 0"),
]


@pytest.mark.parametrize(("op", "given", "words"), REFUSED)
def test_creators_refuse(harness: Harness, op: str, given: list[Any], words: str) -> None:
    harness.log()
    assert harness.create(op, given) is None
    said = harness.log()
    assert said.startswith("ERROR TF-OPS-203: ") and op in said and words in said and "(layer layer)" in said


@RANDOM
@given(
    kv_heads=st.integers(1, 8),
    group=st.integers(1, 16),
    eighths=st.integers(8, 32),
    window=st.integers(0, 2**31 - 1),
    cap=st.floats(0, 1e6, width=32),
    scale=st.floats(0, 1e6, width=32),
    flags=st.tuples(*[st.integers(0, 1)] * 3),
)
def test_serialization_round_trip(
    harness: Harness, kv_heads: int, group: int, eighths: int, window: int, cap: float, scale: float, flags: Any
) -> None:
    made = harness.plugin(
        "PagedAttention", num_heads=kv_heads * group, num_kv_heads=kv_heads, head_size=8 * eighths, scale=scale,
        sliding_window=window, soft_cap=cap, has_scales=flags[0], has_tree_mask=flags[1], has_sinks=flags[2],
    )  # fmt: skip
    written = made.serialize()
    assert {name for name, *_ in written} == set(harness.field_names("PagedAttention"))
    values = {name: value for name, _, value, _ in written}
    assert values["sliding_window"] == window and values["soft_cap"] == np.float32(cap)
    again = harness.create("PagedAttention", written, phase=1)
    assert again is not None and again.serialize() == written and again.core == made.core
    for copy in (made.clone(), again.attach()):
        assert copy.serialize() == written and copy.core == made.core


def test_standard_values(harness: Harness) -> None:
    values = {name: value for name, _, value, _ in harness.plugin("PagedAttention", **ATTENTION).serialize()}
    assert values == {
        **ATTENTION, "scale": 0.0, "sliding_window": 0, "soft_cap": 0.0,
        "has_scales": 0, "has_tree_mask": 0, "has_sinks": 0, "aliased": 0,
    }  # fmt: skip


def test_core(harness: Harness) -> None:
    name, version, namespace, kind, major, timing = harness.plugin("EagleAccept", total=4).core
    assert (name, version, namespace) == ("EagleAccept", "1", "trtforge")
    assert (kind, major) == ("PLUGIN_V3ONE_BUILD", "2")
    assert timing == "EagleAccept/1:total=4;has_sampling=0"


# --- Shapes, types, formats, aliases ------------------------------------------------------------------------


def attention_shapes(
    tokens: int, requests: int, blocks: int, table: int, slots: int = 32, longest: int | None = None
) -> list[tuple[int, ...]]:
    """Shapes of the inputs that are always there; ``longest`` new tokens of a request (None: it could be all)."""
    after = requests + 1 if requests >= 0 else -1
    return [
        (tokens, 512), (tokens, 128), (tokens, 128), (blocks, 2, 2, slots, 64), (after,), (requests,),
        (requests, table), (tokens if longest is None else longest,),
    ]  # fmt: skip


def test_attention_shapes(harness: Harness) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION)
    assert plugin.output_shapes(attention_shapes(7, 3, 20, 4)) == [[7, 512], [20, 2, 2, 32, 64]]
    assert plugin.output_shapes(attention_shapes(-1, -1, -1, -1)) == [[-1, 512], [-1, 2, 2, 32, 64]]


@pytest.mark.parametrize(
    ("position", "shape", "words"),
    [
        (0, (7, 511), "query has shape [7, 511]; it must be [?, 512]"),
        (1, (7, 512), "key has shape"),
        (2, (6, 128), "value has 6 rows; it must have 7"),
        (3, (20, 2, 2, 48, 64), "kv_pool has blocks of 48 slots; they must have 16, 32, 64 or 128"),
        (3, (20, 2, 4, 32, 64), "kv_pool has shape [20, 2, 4, 32, 64]; it must be [?, 2, 2, ?, 64]"),
        (4, (3,), "query_start has 3 entries for 3 requests; it must have one more"),
        (6, (2, 4), "block_table has 2 rows; it must have 3"),
        (6, (3,), "block_table has shape [3]; it must be [?, ?]"),
    ],
)
def test_attention_refuses_shapes(harness: Harness, position: int, shape: tuple[int, ...], words: str) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION)
    given = attention_shapes(7, 3, 20, 4)
    given[position] = shape
    harness.log()
    assert plugin.output_shapes(given) is None
    said = harness.log()
    assert said.startswith("ERROR TF-OPS-204: PagedAttention: ") and words in said
    types = [h.BF16] * 4 + [h.INT32] * 4
    assert plugin.configure(types, given, given) != 0
    assert words in harness.log()


def test_inputs_are_counted(harness: Harness) -> None:
    harness.log()
    assert (
        harness.plugin("PagedAttention", **ATTENTION, has_scales=1).output_shapes(attention_shapes(1, 1, 9, 1)) is None
    )
    assert "there are 8 inputs and 2 outputs" in harness.log()


@pytest.mark.parametrize("activation", [h.FLOAT, h.HALF, h.BF16])
@pytest.mark.parametrize("pool", [h.FLOAT, h.HALF, h.BF16, h.FP8])
def test_attention_formats(harness: Harness, activation: int, pool: int) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION)
    types = [activation] * 3 + [pool] + [h.INT32] * 4 + [activation, pool]
    assert all(plugin.format(pos, 8, types) for pos in range(10))
    assert plugin.output_types(types[:8]) == [activation, pool]
    for pos in range(10):
        assert not plugin.format(pos, 8, types, [h.LINEAR] * pos + [h.CHW4] * (10 - pos)), "only linear tensors"
        for other in (h.INT8, h.INT64, h.UINT8):
            assert not plugin.format(pos, 8, [*types[:pos], other, *types[pos + 1 :]])


def test_scales_go_with_fp8_only(harness: Harness) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION, has_scales=1)
    good = [h.BF16] * 3 + [h.FP8] + [h.INT32] * 4 + [h.FLOAT] * 2
    assert plugin.output_types(good) == [h.BF16, h.FP8]
    harness.log()
    assert plugin.output_types([h.BF16] * 4 + good[4:]) is None
    assert "kv_pool has type" in harness.log()


def test_tree_masks_are_bytes(harness: Harness) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION, has_tree_mask=1, has_sinks=1)
    types = [h.BF16] * 4 + [h.INT32] * 4
    for mask, fits in ((h.BOOL, True), (h.INT8, True), (h.UINT8, True), (h.INT32, False), (h.FLOAT, False)):
        assert plugin.format(8, 10, [*types, mask, h.FLOAT, h.BF16, h.BF16]) == fits
    for width in (1, 5, 64):
        given = [*attention_shapes(7, 3, 20, 4, longest=5), (7, width), (8,)]
        assert plugin.output_shapes(given) is not None
    assert plugin.output_shapes([*given[:9], (4,)]) is None, "a sink a head"


def test_aliases(harness: Harness) -> None:
    """None is declared unless the field says so; then it is what an op updates in place, an input at most once."""
    wanted = {
        "PagedAttention": ({**ATTENTION}, [-1, 3]),
        "EagleTreeBuild": ({**TREE, "level": 1}, [2, 3, 4, 5, *[-1] * 6]),
        "EagleAccept": ({"total": 8}, [-1] * 4),
        "PagedKVMove": ({**MOVE}, [4, 5]),
    }
    for op, (values, aliases) in wanted.items():
        plugin = harness.plugin(op, **values)
        assert [plugin.alias(i) for i in range(plugin.outputs)] == [-1] * len(aliases)
        if op == "EagleAccept":
            continue
        plugin = harness.plugin(op, **values, aliased=1)
        assert [plugin.alias(i) for i in range(plugin.outputs)] == aliases
        assert [plugin.clone().alias(i) for i in range(plugin.outputs)] == aliases
        inputs = [alias for alias in aliases if alias >= 0]
        assert len(set(inputs)) == len(inputs)


def test_tree_shapes(harness: Harness) -> None:
    first = harness.plugin("EagleTreeBuild", **TREE, level=0)
    later = harness.plugin("EagleTreeBuild", **TREE, level=2, has_draft_to_target=1)
    count = TreeShape(3, 2, 3, 8).candidates
    state = [(5,), (5, count), (5, count), (5, count), (5, 2)]
    made = [[5, count]] * 3 + [[5, 2]] + [[5, 8]] * 4 + [[5, 8, 8], [5]]
    assert first.output_shapes([(5, 1, 100), *state]) == made
    assert later.output_shapes([(5, 2, 100), *state, (100,)]) == made
    assert first.output_shapes([(5, 2, 100), *state]) is None, "one row of logits at level 0"
    assert later.output_shapes([(5, 2, 100), *state, (99,)]) is None, "a target token for each draft token"
    assert first.output_types([h.HALF, *[h.INT32] * 3, h.FLOAT, h.INT32]) == [
        h.INT32, h.INT32, h.FLOAT, h.INT32, *[h.INT32] * 3, h.FLOAT, h.INT8, h.INT32,
    ]  # fmt: skip


def test_accept_and_move_shapes(harness: Harness) -> None:
    accept = harness.plugin("EagleAccept", total=8)
    assert accept.output_shapes([(40, 100), (5, 8), (5, 8), (5,)]) == [[5, 8], [5], [5, 8], [5]]
    assert accept.output_shapes([(39, 100), (5, 8), (5, 8), (5,)]) is None
    sampled = harness.plugin("EagleAccept", total=8, has_sampling=1)
    assert sampled.output_types([h.FLOAT, *[h.INT32] * 3, h.FLOAT, h.INT64, h.INT32]) == [h.INT32] * 4
    move = harness.plugin("PagedKVMove", **MOVE)
    pool = (20, 2, 2, 32, 64)
    assert move.output_shapes([(5, 4), (5,), (5, 8), (5,), pool, pool]) == [list(pool)] * 2
    harness.log()
    assert move.output_shapes([(5, 4), (5,), (5, 8), (5,), pool, (20, 2, 2, 64, 64)]) is None
    assert "pool 1 has blocks of another size" in harness.log()
    assert move.output_types([h.INT32] * 4 + [h.BF16, h.HALF]) is None, "pools of one type"


@pytest.mark.parametrize("longest", [1, 3, 256])
def test_workspace_covers_every_smaller_shape(harness: Harness, longest: int) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION)
    types = [h.BF16] * 4 + [h.INT32] * 4
    most = attention_shapes(256, 16, 4096, 128, longest=longest)
    bound = plugin.workspace(types, attention_shapes(1, 1, 1, 1), most)
    assert bound > 0
    for tokens, requests, table in ((1, 1, 128), (16, 16, 128), (256, 1, 128), (200, 7, 3), (2, 2, 1)):
        for new in {1, longest, min(longest, 2)}:
            exact = attention_shapes(tokens, requests, 4096, table, longest=new)
            assert plugin.workspace(types, exact, exact) <= bound


@pytest.mark.parametrize(("tokens", "requests", "table"), [(1, 1, 128), (16, 16, 128), (200, 7, 128), (256, 1, 64)])
def test_workspace_of_a_smaller_gpu_is_enough_on_the_largest_one(
    harness: Harness, kernels: CudaLibrary, monkeypatch: pytest.MonkeyPatch, tokens: int, requests: int, table: int
) -> None:
    """A plan keeps the workspace of the GPU that built it (here of 4 multiprocessors); an A100 of 108 runs it too."""
    shapes = attention_shapes(tokens, requests, 4096, table)
    planned = harness.plugin("PagedAttention", **ATTENTION).workspace([h.BF16] * 4 + [h.INT32] * 4, shapes, shapes)
    args = arguments(
        ops.PAGED_ATTENTION,
        num_tokens=tokens, num_requests=requests, max_blocks=table, block_size=32, activation_dtype=1, pool_dtype=1,
        **ATTENTION,
    )  # fmt: skip
    for multiprocessors in (4, 56, 108, 128):
        monkeypatch.setattr(kernels, "multiprocessors", multiprocessors)
        assert kernels.attention_workspace(args) <= planned


# --- Enqueue, by the CUDA kernels on the CPU ----------------------------------------------------------------


def longest_query(batch: Batch) -> torch.Tensor:
    """The input whose length alone is read; what it holds is meant to be wrong."""
    return torch.full((max(1, int(batch.query_start.diff().max())),), -7, dtype=torch.int32)


def attend(plugin: Plugin, batch: Batch, pool_out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and pool of one enqueue; the pool is updated in place unless ``pool_out`` is given."""
    pool = batch.pool.clone()
    out = torch.full((len(batch.query), batch.query.shape[1]), math.nan, dtype=batch.query.dtype)
    inputs = [
        batch.query.contiguous(), batch.key.contiguous(), batch.value.contiguous(), pool,
        batch.query_start, batch.sequence_lengths, batch.block_table, longest_query(batch),
    ]  # fmt: skip
    options = batch.options
    if pool.dtype == torch.float8_e4m3fn:
        inputs += [torch.tensor(options[name]) for name in ("k_scale", "v_scale")]
    if options.get("tree_mask") is not None:
        inputs.append(options["tree_mask"].contiguous())
    if options.get("sinks") is not None:
        inputs.append(options["sinks"])
    target = pool if pool_out is None else pool_out
    assert plugin.run(inputs, [out, target]) == 0, plugin.harness.log()
    if pool_out is not None:
        assert torch.equal(bits(pool), bits(batch.pool)), "an input that is not aliased is only read"
    return out, target


def attention_plugin(harness: Harness, batch: Batch, **values: float) -> Plugin:
    options = batch.options
    flags = {
        "has_scales": int(batch.pool.dtype == torch.float8_e4m3fn),
        "has_tree_mask": int(options.get("tree_mask") is not None),
        "has_sinks": int(options.get("sinks") is not None),
    }
    sizes = {name: int(options[name]) for name in ("num_heads", "num_kv_heads", "head_size")}
    cap, window = float(options.get("soft_cap", 0.0)), int(options.get("sliding_window", 0))
    return harness.plugin("PagedAttention", **sizes, soft_cap=cap, sliding_window=window, **flags, **values)


def agrees(batch: Batch, out: torch.Tensor, pool: torch.Tensor) -> None:
    expected_pool = batch.pool.clone()
    expected = batch.run(reference.paged_attention, expected_pool)
    assert torch.equal(bits(pool), bits(expected_pool))
    torch.testing.assert_close(out.float(), expected.float(), rtol=1e-2, atol=TOLERANCE[out.dtype])


@RANDOM
@given(
    requests=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 2, 4]),
    head_size=st.sampled_from([64, 128]),
    block_size=st.sampled_from([16, 32]),
    activation=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    fp8=st.booleans(),
    window=st.sampled_from([0, 9]),
    cap=st.sampled_from([0.0, 20.0]),
    sinks=st.booleans(),
)
def test_attention_agrees_with_the_reference(
    harness: Harness, requests: list[tuple[int, int]], kv_heads: int, group: int, head_size: int, block_size: int,
    activation: torch.dtype, fp8: bool, window: int, cap: float, sinks: bool,
) -> None:  # fmt: skip
    extra = {"sinks": torch.linspace(-1, 1, kv_heads * group)} if sinks else {}
    batch = make_batch(
        requests, heads=kv_heads * group, kv_heads=kv_heads, head_size=head_size, block_size=block_size,
        activation=activation, pool=torch.float8_e4m3fn if fp8 else activation, sliding_window=window, soft_cap=cap,
        **extra,
    )  # fmt: skip
    agrees(batch, *attend(attention_plugin(harness, batch), batch))


def test_a_tree_mask(harness: Harness) -> None:
    nodes = 9
    mask = random_tree(nodes, torch.Generator().manual_seed(1))
    batch = make_batch([(30, nodes), (7, nodes)], tree_mask=torch.cat([mask, mask]))
    agrees(batch, *attend(attention_plugin(harness, batch), batch))


def test_a_pool_that_was_not_aliased_is_copied(harness: Harness) -> None:
    """TensorRT may hand out another buffer: the output is then the whole updated pool."""
    batch = make_batch([(20, 3), (5, 1)])
    out, pool = attend(attention_plugin(harness, batch), batch, torch.full_like(batch.pool, 7.0))
    agrees(batch, out, pool)


def test_a_refusal_of_the_kernels_is_a_failed_step(harness: Harness) -> None:
    plugin = harness.plugin("PagedAttention", **ATTENTION)
    types = [torch.zeros(2, 512), torch.zeros(2, 128), torch.zeros(2, 128), torch.zeros(4, 2, 2, 48, 64)]
    index = [torch.tensor([0, 2]), torch.tensor([2]), torch.tensor([[0]]), torch.tensor([2, 2])]
    harness.log()
    assert plugin.run([*types, *(t.int() for t in index)], [torch.zeros(2, 512), types[3]], workspace=64) != 0
    assert "blocks of 48 slots" in harness.log()


@pytest.mark.parametrize("entry", [-1, 1000])
def test_a_checked_build_sees_blocks_outside_the_pool(checked_harness: Harness, entry: int) -> None:
    batch = make_batch([(20, 3), (5, 1)])
    plugin = attention_plugin(checked_harness, batch)
    agrees(batch, *attend(plugin, batch))
    batch.block_table[0, 1] = entry
    pool = batch.pool.clone()
    out = torch.zeros(4, batch.query.shape[1])
    inputs = [batch.query.contiguous(), batch.key.contiguous(), batch.value.contiguous(), pool]
    checked_harness.log()
    index = [batch.query_start, batch.sequence_lengths, batch.block_table, longest_query(batch)]
    code = plugin.run([*inputs, *index], [out, pool])
    said = checked_harness.log()
    assert code != 0 and "TF-OPS-109: PagedAttention" in said and str(entry) in said
    assert torch.equal(bits(pool), bits(batch.pool)), "a refused call writes nothing"


def test_a_tree_engine_prefills_with_a_mask_of_one_column(harness: Harness) -> None:
    """One column is plain causality whatever it holds: a prompt may be longer than any tree is wide."""
    batch = make_batch([(30, 90), (7, 1)], activation=torch.bfloat16, pool=torch.bfloat16)
    wanted = attend(attention_plugin(harness, batch), batch)
    for column in (torch.zeros(91, 1), torch.ones(91, 1)):
        tree = dataclasses.replace(batch, options={**batch.options, "tree_mask": column.bool()})
        out, pool = attend(attention_plugin(harness, tree), tree)
        assert torch.equal(out, wanted[0]) and torch.equal(bits(pool), bits(wanted[1]))


def test_queries_longer_than_the_tree_mask_are_refused(harness: Harness) -> None:
    batch = make_batch([(30, 9)], tree_mask=torch.ones(9, 4).bool())
    plugin = attention_plugin(harness, batch)
    pool, out = batch.pool.clone(), torch.zeros(9, batch.query.shape[1])
    inputs = [batch.query, batch.key, batch.value, pool, batch.query_start, batch.sequence_lengths, batch.block_table]
    given = [t.contiguous() for t in [*inputs, longest_query(batch), batch.options["tree_mask"]]]
    harness.log()
    assert plugin.run(given, [out, pool]) != 0
    assert "TF-OPS-112: PagedAttention: requests have up to 9 new tokens but the tree mask is 4" in harness.log()


@pytest.mark.parametrize("activation", [torch.bfloat16, torch.float32])
def test_decode_steps_launch_no_kernels_for_long_queries(harness: Harness, activation: torch.dtype) -> None:
    """What the plugin knows of the longest query decides what it launches: two kernels, or with prompts two more."""
    # as many requests as a list for long queries would have room for
    decode = make_batch([(20 + i, 1) for i in range(24)], activation=activation, pool=activation)
    mixed = make_batch([(20, 1), (5, 30)], activation=activation, pool=activation)
    long = activation != torch.float32  # float32 arithmetic has one kind of tasks
    for batch, kernels in ((decode, 2), (mixed, 3 if long else 2)):
        plugin = attention_plugin(harness, batch)
        harness.launches()
        agrees(batch, *attend(plugin, batch))
        assert len(harness.launches()) == kernels


def test_the_builder_times_a_plugin_without_running_it(harness: Harness) -> None:
    """In the build phase the tensors mean nothing: outputs are cleared, nothing is launched; clones stay so."""
    batch = make_batch([(20, 3), (5, 1)])
    for name in ("query_start", "sequence_lengths", "block_table"):
        getattr(batch, name).fill_(2**31 - 1)
    runs = attention_plugin(harness, batch)
    made = harness.create("PagedAttention", runs.serialize(), phase=0)
    assert made is not None
    for plugin in (made, made.clone(), made.attach()):
        for there in (None, torch.full_like(batch.pool, 7.0)):
            harness.launches()
            out, pool = attend(plugin, batch, there)
            assert not out.any() and not harness.launches()
            if there is None:
                assert torch.equal(bits(pool), bits(batch.pool)), "the pool itself is left alone"
            else:
                assert not bits(pool).any()


def test_no_index_leads_a_kernel_out_of_its_tensors(harness_file: Path, plugin_library: Path) -> None:
    """Zeros, ends of the range, noise, falling offsets: wrong numbers perhaps, but no touch of a guarded page."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugins.tensorrt.garbage", str(harness_file), str(plugin_library)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr.splitlines()[-1:])
    assert int(done.stdout) == 2 * 10 * (6 * 3 + 8)


@pytest.mark.parametrize("op", ["EagleTreeBuild", "EagleAccept", "PagedKVMove"])
def test_every_plugin_keeps_the_build_phase(harness: Harness, op: str) -> None:
    values = {"EagleTreeBuild": {**TREE, "level": 1}, "EagleAccept": {"total": 8}, "PagedKVMove": {**MOVE}}[op]
    made = harness.create(op, harness.plugin(op, **values).serialize(), phase=0)
    assert made is not None
    count = TreeShape(3, 2, 3, 8).candidates

    def garbage(*shape: int) -> torch.Tensor:
        return torch.full(shape, -(2**31), dtype=torch.int32)

    pools = [torch.full((4, 2, 2, 16, 64), 3.0) for _ in range(2)]
    inputs, outputs = {
        "EagleTreeBuild": (
            [torch.randn(2, 2, 50), garbage(2), garbage(2, count), garbage(2, count), torch.randn(2, count),
             garbage(2, 2)],
            [garbage(2, count), garbage(2, count), torch.randn(2, count), garbage(2, 2), *[garbage(2, 8)] * 3,
             torch.randn(2, 8), torch.ones(2, 8, 8, dtype=torch.int8), garbage(2)],
        ),
        "EagleAccept": (
            [torch.randn(16, 50), garbage(2, 8), garbage(2, 8), garbage(2)],
            [garbage(2, 8), garbage(2), garbage(2, 8), garbage(2)],
        ),
        "PagedKVMove": (
            [garbage(2, 3), garbage(2), garbage(2, 8), garbage(2), *pools],
            [torch.full_like(pool, 5.0) for pool in pools],
        ),
    }[op]  # fmt: skip
    harness.launches()
    assert made.clone().run(inputs, outputs) == 0, harness.log()
    assert not harness.launches() and not any(tensor.any() for tensor in outputs)
    assert all((pool == 3.0).all() for pool in pools)


def test_tree_build_is_the_launchers(harness: Harness, kernels: CudaLibrary) -> None:
    """Every level, dynamic and static, through the plugin and without it: the same tensors."""
    generator = torch.Generator().manual_seed(3)
    for static in (False, True):
        shape, fixed = (
            (TreeShape(3, 2, 3, 8), None) if not static else static_tree([(0,), (1,), (0, 0), (0, 1), (1, 0)])
        )
        mine, theirs = new_state(shape, 2), new_state(shape, 2)
        roots = torch.tensor([5, 9], dtype=torch.int32)
        for level in range(shape.levels):
            logits = torch.randn(2, 1 if level == 0 else shape.expand, 50, generator=generator)
            tree = kernels.eagle_tree_build(logits, roots, theirs, shape, level, static=fixed)
            plugin = harness.plugin(
                "EagleTreeBuild", top_k=shape.top_k, expand=shape.expand, levels=shape.levels, total=shape.total,
                level=level, has_static_tree=int(static),
            )  # fmt: skip
            state = [mine.candidate_tokens, mine.candidate_parents, mine.candidate_scores, mine.frontier]
            got = [torch.empty_like(t) for t in (tree.tokens, tree.parents, tree.depths, tree.scores)]
            mask, counts = torch.empty(2, shape.total, shape.total, dtype=torch.int8), torch.empty_like(tree.counts)
            inputs = [logits, roots, *state, *([] if fixed is None else [fixed.parents, fixed.ranks])]
            assert plugin.run(inputs, [*state, *got, mask, counts]) == 0, harness.log()
        for name in ("candidate_tokens", "candidate_parents", "candidate_scores", "frontier"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
        for mine_, theirs_ in zip([*got, counts], [tree.tokens, tree.parents, tree.depths, tree.scores, tree.counts],
                                  strict=True):  # fmt: skip
            assert torch.equal(mine_, theirs_)
        assert torch.equal(mask.view(torch.uint8), tree.mask)


@pytest.mark.parametrize("sampled", [False, True])
def test_accept_is_the_launchers(harness: Harness, kernels: CudaLibrary, sampled: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 30, (3, 4), generator=generator, dtype=torch.int32)
    parents = torch.tensor([[-1, 0, 0, 1]] * 3, dtype=torch.int32)
    counts = torch.full((3,), 4, dtype=torch.int32)
    logits = torch.randn(12, 30, generator=generator)
    logits[0, tokens[0, 1]] = 9.0  # the first request accepts its first draft
    more = [torch.tensor([0.0, 1.0, 0.7]), torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6], dtype=torch.int32)]
    options = dict(zip(("temperatures", "seeds", "root_positions"), more, strict=True)) if sampled else {}
    wanted = kernels.eagle_accept(logits, tokens, parents, counts, **options)
    plugin = harness.plugin("EagleAccept", total=4, has_sampling=int(sampled))
    got = [torch.empty_like(t) for t in (wanted.path, wanted.lengths, wanted.emitted, wanted.bonus)]
    assert plugin.run([logits, tokens, parents, counts, *(more if sampled else [])], got) == 0, harness.log()
    for mine, theirs in zip(got, (wanted.path, wanted.lengths, wanted.emitted, wanted.bonus), strict=True):
        assert torch.equal(mine, theirs)
    assert int(wanted.lengths[0]) >= 2


def test_move_is_the_launchers(harness: Harness, kernels: CudaLibrary) -> None:
    generator = torch.Generator().manual_seed(5)
    pools = [torch.randn(6, 2, 2, 16, 64, generator=generator).bfloat16() for _ in range(2)]
    table = torch.tensor([[4, 1, 0], [2, 5, 3]], dtype=torch.int32)
    bases, lengths = torch.tensor([14, 3], dtype=torch.int32), torch.tensor([3, 2], dtype=torch.int32)
    path = torch.tensor([[0, 2, 5, -1], [0, 3, -1, -1]], dtype=torch.int32)
    wanted = [pool.clone() for pool in pools]
    kernels.paged_kv_move(wanted, table, bases, path, lengths)
    plugin = harness.plugin("PagedKVMove", **MOVE)
    assert plugin.run([table, bases, path, lengths, *pools], pools) == 0, harness.log()
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(pools, wanted, strict=True))
