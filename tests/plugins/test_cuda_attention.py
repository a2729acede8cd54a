"""Conformance of the CUDA PagedAttention with the written contract, under the host shim and on a GPU.

Tolerances are those of docs/ops.md, as for the host library. Tensor cores round the softmax weights to the queries'
type before they multiply the values; that stays inside the tolerance.
"""

from __future__ import annotations

import ctypes
import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import reference
from plugins.cuda.library import CudaLibrary
from plugins.shared_ops import attention_args
from plugins.structs import arguments
from tests.plugins.batches import ACTIVATIONS, POOLS, TOLERANCE, Batch, bits, make_batch, random_tree
from trtforge.ground.errors import ForgeError
from trtforge.native import ops

RANDOM = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)


def attend(library: CudaLibrary, batch: Batch, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and pool of a call, on the CPU."""
    there = batch.to(library.device)
    pool = there.pool.clone()
    out = there.run(library.paged_attention, pool, **changes)
    return out.cpu(), pool.cpu()


def agree(library: CudaLibrary, batch: Batch, **changes: object) -> None:
    """The kernels and the reference store the same bits and attend to the same values."""
    actual, stored = attend(library, batch, **changes)
    expected_pool = batch.pool.clone()
    expected = batch.run(reference.paged_attention, expected_pool)
    assert torch.equal(bits(stored), bits(expected_pool))
    assert not actual.isnan().any()
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=1e-2 if actual.dtype != torch.float32 else 2e-5,
        atol=TOLERANCE[actual.dtype],
    )  # fmt: skip


@st.composite
def ragged(draw: st.DrawFn) -> Batch:
    """Any legal call of a small size: mixed prefill and decode, every size, type and option."""
    requests = draw(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 18)), min_size=1, max_size=4))
    kv_heads = draw(st.integers(1, 2))
    return make_batch(
        requests,
        kv_heads=kv_heads,
        heads=kv_heads * draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16])),
        head_size=draw(st.sampled_from([64, 64, 72, 80, 104, 128, 256])),
        block_size=draw(st.sampled_from([16, 32, 64, 128])),
        pool=draw(st.sampled_from(POOLS)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        sliding_window=draw(st.sampled_from([0, 0, 1, 7, 33])),
        soft_cap=draw(st.sampled_from([0.0, 0.0, 2.5, 50.0])),
        scale=draw(st.sampled_from([None, 0.05, 1.0])),
        seed=draw(st.integers(0, 1000)),
    )


@RANDOM
@given(batch=ragged(), multiprocessors=st.sampled_from([1, 4, 64]))
def test_random_batches(kernels: CudaLibrary, batch: Batch, multiprocessors: int) -> None:
    kernels.multiprocessors = multiprocessors
    agree(kernels, batch)


@RANDOM
@given(
    before=st.integers(0, 60),
    nodes=st.integers(1, 64),
    window=st.sampled_from([0, 0, 5, 40]),
    activation=st.sampled_from(ACTIVATIONS),
    fp8=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_trees(
    kernels: CudaLibrary, before: int, nodes: int, window: int, activation: torch.dtype, fp8: bool, seed: int
) -> None:
    """Verification of trees of up to 64 nodes beside a plain decode, with a wider mask than needed."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(nodes + 1, nodes + 3, dtype=torch.bool)
    mask[0, 0] = True
    mask[1:, :nodes] = random_tree(nodes, generator)
    pool = torch.float8_e4m3fn if fp8 else activation
    agree(
        kernels,
        make_batch(
            [(before + 3, 1), (before, nodes)], tree_mask=mask, sliding_window=window, activation=activation, pool=pool
        ),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_long_contexts_are_split_and_merged(
    kernels: CudaLibrary, activation: torch.dtype, fp8: bool, multiprocessors: int
) -> None:
    """With many multiprocessors contexts are split; splits of shorter requests are empty and must be left out."""
    kernels.multiprocessors = multiprocessors
    pool = torch.float8_e4m3fn if fp8 else activation
    agree(kernels, make_batch([(1300, 1), (3, 1), (700, 20)], kv_heads=1, heads=2, activation=activation, pool=pool))


@pytest.mark.parametrize("head_size", [96, 112, 136, 192, 200, 248])
@pytest.mark.parametrize("pool", [torch.float16, torch.float8_e4m3fn])
def test_head_sizes_between_the_tiles(kernels: CudaLibrary, head_size: int, pool: torch.dtype) -> None:
    agree(
        kernels,
        make_batch([(17, 1), (0, 9)], kv_heads=1, heads=2, head_size=head_size, activation=torch.float16, pool=pool),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("multiprocessors", [1, 64])
def test_sinks(kernels: CudaLibrary, activation: torch.dtype, multiprocessors: int) -> None:
    kernels.multiprocessors = multiprocessors
    sinks = torch.tensor([0.5, -3.0, 8.0, 0.0])
    agree(kernels, make_batch([(540, 1), (3, 9)], sinks=sinks, activation=activation, pool=activation))


def test_more_requests_than_a_block_has_threads(kernels: CudaLibrary) -> None:
    """The plan is then written in rounds, each behind the one before."""
    requests = [(0, 1)] * 250 + [(0, 17), (0, 1), (0, 3), (0, 0)] * 3 + [(0, 1)] * 250
    agree(kernels, make_batch(requests, kv_heads=1, heads=1, activation=torch.float32, pool=torch.float32))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_order_of_threads_does_not_matter(shim: CudaLibrary, activation: torch.dtype) -> None:
    """A missing barrier would let a thread read what another one has not written yet in one of the two orders."""
    results = []
    for descending in (False, True):
        shim.shim_order(descending=descending)
        batch = make_batch([(300, 1), (20, 24)], activation=activation, pool=activation)
        shim.multiprocessors = 64
        results.append(attend(shim, batch))
    shim.shim_order(descending=False)
    shim.multiprocessors = 0
    assert torch.equal(bits(results[0][0]), bits(results[1][0]))
    assert torch.equal(bits(results[0][1]), bits(results[1][1]))


def test_promise_of_new_tokens_changes_nothing_but_launches(kernels: CudaLibrary) -> None:
    batch = make_batch([(30, 1), (80, 1), (9, 1)], activation=torch.bfloat16, pool=torch.bfloat16)
    assert torch.equal(attend(kernels, batch)[0], attend(kernels, batch, max_new_tokens=1)[0])


@pytest.mark.parametrize(("context", "merged"), [(20, False), (700, True)])
def test_a_promised_decode_step_launches_nothing_for_long_queries(
    shim: CudaLibrary, context: int, merged: bool
) -> None:
    """Unpromised, kernels for long queries run over empty lists, and their merge with them."""
    shim.multiprocessors, shim.checked = 64, False
    # as many requests as a list for long queries would have room for
    batch = make_batch([(context, 1)] * 24, activation=torch.bfloat16, pool=torch.bfloat16)
    counts = []
    for promise in (0, 1):
        shim.shim_launches()
        attend(shim, batch, max_new_tokens=promise)
        counts.append(len(shim.shim_launches()))
    shim.multiprocessors, shim.checked = 0, True
    assert counts[1] == 2 + merged and counts[0] > counts[1]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("held", [0, 1])
def test_a_mask_of_one_column_is_plain_causality(kernels: CudaLibrary, activation: torch.dtype, held: int) -> None:
    batch = make_batch([(3, 1), (20, 90)], activation=activation, pool=activation)
    column = torch.full((91, 1), held, dtype=torch.uint8, device=kernels.device)
    plain, masked = attend(kernels, batch), attend(kernels, batch, tree_mask=column)
    assert torch.equal(plain[0], masked[0]) and torch.equal(bits(plain[1]), bits(masked[1]))


def test_chain_mask_equals_causality(kernels: CudaLibrary) -> None:
    batch = make_batch([(70, 9)], heads=6, activation=torch.bfloat16, pool=torch.bfloat16)
    chain = torch.ones(9, 9).tril().bool().to(kernels.device)
    plain, masked = attend(kernels, batch)[0], attend(kernels, batch, tree_mask=chain)[0]
    torch.testing.assert_close(plain.float(), masked.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_row_without_visible_keys_gives_zeros(kernels: CudaLibrary, activation: torch.dtype) -> None:
    mask = torch.tensor([[True, False], [False, False]])
    out, _ = attend(kernels, make_batch([(0, 2)], tree_mask=mask, activation=activation, pool=activation))
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().sum() > 0


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_is_not_hidden(kernels: CudaLibrary, pool: torch.dtype, activation: torch.dtype) -> None:
    batch = make_batch([(70, 2)], heads=2, kv_heads=2, pool=pool, activation=activation)
    batch.key[1, 64] = float("nan")
    batch.query[0, 0] = float("nan")
    out, _ = attend(kernels, batch)
    assert out[0, :64].isnan().all() and out[1, 64:].isnan().all()
    assert not out[1, :64].isnan().any()


def test_blocks_before_the_window_are_never_followed(kernels: CudaLibrary) -> None:
    batch = make_batch([(300, 2)], sliding_window=40, activation=torch.bfloat16, pool=torch.bfloat16)
    expected = attend(kernels, batch)[0]
    batch.block_table[0, : (300 - 40) // 16] = -1
    assert torch.equal(attend(kernels, batch)[0], expected)


def test_output_may_be_the_query(kernels: CudaLibrary) -> None:
    kernels.multiprocessors = 64
    batch = make_batch([(600, 3), (0, 24)], activation=torch.float16, pool=torch.float16)
    expected = attend(kernels, batch)[0]
    there = batch.to(kernels.device)
    own = dataclasses.replace(there, query=there.query.contiguous().clone())
    own.run(kernels.paged_attention, there.pool.clone(), out=own.query)
    assert torch.equal(own.query.cpu(), expected)


def test_empty_steps(kernels: CudaLibrary) -> None:
    nothing = make_batch([])
    assert attend(kernels, nothing)[0].shape == (0, 256)
    agree(kernels, make_batch([(5, 0), (9, 1), (4, 0)], activation=torch.bfloat16, pool=torch.bfloat16))


# --- workspace ------------------------------------------------------------------------------------------------


@RANDOM
@given(
    tokens=st.integers(0, 3000),
    requests=st.integers(0, 200),
    blocks=st.integers(0, 300),
    multiprocessors=st.sampled_from([1, 16, 132]),
    group=st.sampled_from([1, 4, 16]),
    data=st.data(),
)
def test_bound_holds_for_every_smaller_shape(
    shim: CudaLibrary, tokens: int, requests: int, blocks: int, multiprocessors: int, group: int, data: st.DataObject,
) -> None:  # fmt: skip
    shim.multiprocessors = multiprocessors
    fields = {"block_size": 64, "num_heads": 2 * group, "num_kv_heads": 2, "head_size": 128, "activation_dtype": 1,
              "pool_dtype": data.draw(st.sampled_from([0, 1, 3]))}  # fmt: skip
    limits = arguments(ops.PAGED_ATTENTION, num_tokens=tokens, num_requests=requests, max_blocks=blocks, **fields)
    smaller = arguments(ops.PAGED_ATTENTION, 
        num_tokens=data.draw(st.integers(0, tokens)), num_requests=data.draw(st.integers(0, requests)),
        max_blocks=data.draw(st.integers(0, blocks)), **fields,
    )  # fmt: skip
    assert shim.attention_workspace(smaller) <= shim.attention_workspace(limits, bound=True)
    shim.multiprocessors = 0


def test_exactly_the_reported_workspace_is_used(shim: CudaLibrary) -> None:
    """One byte less is refused; the bytes behind it stay as they are, and the last partial results lie inside it."""
    shim.multiprocessors = 64
    batch = make_batch([(700, 1), (600, 24)], activation=torch.bfloat16, pool=torch.bfloat16)
    args, _out = attention_args(
        batch.query, batch.key, batch.value, batch.pool, batch.query_start, batch.sequence_lengths,
        batch.block_table, None, **batch.options,
    )  # fmt: skip
    size = shim.attention_workspace(args)
    memory = torch.full((size + 1024,), 0xA5, dtype=torch.uint8)
    begin = -memory.data_ptr() % 256
    call, _ = shim._call()
    call.workspace, call.workspace_bytes = memory.data_ptr() + begin, size
    shim.check(shim.raw.trtforge_cuda_paged_attention(args, call), "PagedAttention")
    assert (memory[begin + size :] == 0xA5).all()
    assert (memory[begin : begin + size] != 0xA5).any()
    call.workspace_bytes = size - 1
    with pytest.raises(ForgeError, match=f"this call needs {size}"):
        shim.check(shim.raw.trtforge_cuda_paged_attention(args, call), "PagedAttention")
    shim.multiprocessors = 0


# --- refusals -------------------------------------------------------------------------------------------------


def refused(library: CudaLibrary, batch: Batch, code: str, **changes: object) -> None:
    """The call is refused with this code and writes nothing into the pool."""
    there = batch.to(library.device)
    pool = there.pool.clone()
    with pytest.raises(ForgeError, match=code):
        there.run(library.paged_attention, pool, **changes)
    assert torch.equal(bits(pool.cpu()), bits(batch.pool))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"block_table": (0, 0, 99)}, "TF-OPS-109"),
        ({"block_table": (1, 1, -1)}, "TF-OPS-109"),
        ({"query_start": (0, 1)}, "TF-OPS-107"),
        ({"query_start": (2, 3)}, "TF-OPS-107"),
        ({"query_start": (1, 9)}, "TF-OPS-107"),
        ({"sequence_lengths": (1, 1)}, "TF-OPS-108"),
        ({"sequence_lengths": (0, 5000)}, "TF-OPS-108"),
    ],
)
def test_indices_outside_are_refused_by_the_device(
    kernels: CudaLibrary, change: dict[str, tuple[int, ...]], code: str
) -> None:
    """Checked mode: the verdict comes from the device, and nothing has been written."""
    batch = make_batch([(20, 2), (30, 3)], activation=torch.bfloat16, pool=torch.bfloat16)
    for name, (*where, value) in change.items():
        getattr(batch, name)[tuple(where)] = value
    refused(kernels, batch, code)


def test_mask_and_promise_are_checked_by_the_device(kernels: CudaLibrary) -> None:
    batch = make_batch([(20, 4)], activation=torch.bfloat16, pool=torch.bfloat16)
    refused(kernels, batch, "TF-OPS-112", tree_mask=torch.ones(4, 3, dtype=torch.bool).to(kernels.device))
    refused(kernels, batch, "TF-OPS-107", max_new_tokens=2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"head_size": 60}, "TF-OPS-104"),
        ({"head_size": 264}, "TF-OPS-104"),
        ({"block_size": 24}, "TF-OPS-105"),
        ({"num_heads": 5}, "TF-OPS-106"),
        ({"activation_dtype": 3}, "TF-OPS-102"),
        ({"pool_dtype": 7}, "TF-OPS-102"),
        ({"scale": -1.0}, "TF-OPS-111"),
        ({"soft_cap": float("inf")}, "TF-OPS-111"),
        ({"sliding_window": -1}, "TF-OPS-111"),
    ],
)
def test_fields_outside_the_table(shim: CudaLibrary, fields: dict[str, float], code: str) -> None:
    good = {"block_size": 16, "num_heads": 4, "num_kv_heads": 2, "head_size": 64}
    with pytest.raises(ForgeError, match=code):
        shim.attention_workspace(arguments(ops.PAGED_ATTENTION, **{**good, **fields}))


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_rows_that_are_not_aligned(kernels: CudaLibrary, part: str) -> None:
    batch = make_batch([(20, 2)], activation=torch.bfloat16, pool=torch.bfloat16)
    there = batch.to(kernels.device)
    wide = torch.zeros(2, getattr(there, part).shape[1] + 9, dtype=torch.bfloat16, device=kernels.device)
    there = dataclasses.replace(there, **{part: wide[:, 8:-1]})
    with pytest.raises(ForgeError, match="TF-OPS-110"):
        there.run(kernels.paged_attention, there.pool)


def test_tokens_without_requests(kernels: CudaLibrary) -> None:
    batch = make_batch([(20, 2)])
    none = dataclasses.replace(
        batch, query_start=batch.query_start[:1], sequence_lengths=batch.sequence_lengths[:0],
        block_table=batch.block_table[:0],
    )  # fmt: skip
    refused(kernels, none, "TF-OPS-10[17]")


def test_a_struct_of_another_layout(shim: CudaLibrary) -> None:
    args = arguments(ops.PAGED_ATTENTION, block_size=16, num_heads=4, num_kv_heads=2, head_size=64)
    args.struct_size -= 8
    with pytest.raises(ForgeError, match="TF-OPS-003"):
        shim.attention_workspace(args)


def test_tensors_of_the_wrong_kind(shim: CudaLibrary) -> None:
    batch = make_batch([(20, 2)])
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        batch.run(shim.paged_attention, batch.pool.double())
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        dataclasses.replace(batch, query_start=batch.query_start.long()).run(shim.paged_attention, batch.pool)


def test_status_words_without_meaning(shim: CudaLibrary) -> None:
    words = (ctypes.c_int32 * 8)(77)
    with pytest.raises(ForgeError, match="TF-OPS-003"):
        shim.check(shim.raw.trtforge_cuda_describe(b"op", ctypes.addressof(words)), "op")
