"""Conformance of the host library's PagedAttention with the written contract, on every instruction set here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import reference
from plugins.host.library import HostLibrary
from tests.plugins.batches import ACTIVATIONS, POOLS, TOLERANCE, Batch, bits, make_batch, random_tree

RANDOM = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)


def agree(library: HostLibrary, batch: Batch) -> None:
    """The library and the reference store the same bits and attend to the same values."""
    stored, expected_pool = batch.pool.clone(), batch.pool.clone()
    actual = batch.run(library.paged_attention, stored)
    expected = batch.run(reference.paged_attention, expected_pool)
    assert torch.equal(bits(stored), bits(expected_pool))
    assert not actual.isnan().any()
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=1e-2 if actual.dtype != torch.float32 else 2e-5,
        atol=TOLERANCE[actual.dtype],
    )  # fmt: skip


@st.composite
def ragged(draw: st.DrawFn) -> Batch:
    """Any legal call: mixed prefill and decode, shuffled blocks, every size, dtype and option."""
    requests = draw(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 20)), min_size=1, max_size=5))
    kv_heads = draw(st.integers(1, 3))
    return make_batch(
        requests,
        kv_heads=kv_heads,
        heads=kv_heads * draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16])),
        head_size=draw(st.sampled_from([64, 72, 80, 96, 104, 128, 192, 256])),
        block_size=draw(st.sampled_from([16, 32, 64, 128])),
        pool=draw(st.sampled_from(POOLS)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        sliding_window=draw(st.sampled_from([0, 0, 1, 7, 33])),
        soft_cap=draw(st.sampled_from([0.0, 0.0, 2.5, 50.0])),
        scale=draw(st.sampled_from([None, 0.05, 1.0])),
        seed=draw(st.integers(0, 1000)),
    )


@RANDOM
@given(batch=ragged())
def test_random_batches(library: HostLibrary, batch: Batch) -> None:
    agree(library, batch)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("pool", POOLS)
def test_every_pair_of_dtypes_over_several_chunks(
    library: HostLibrary, pool: torch.dtype, activation: torch.dtype
) -> None:
    """Contexts past one and two partial results (512 keys), prefill and decode in one step."""
    agree(library, make_batch([(600, 1), (500, 30), (0, 17), (1100, 2)], pool=pool, activation=activation, heads=6))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_every_size_of_row_group(library: HostLibrary, group: int) -> None:
    """Rows are cut into register tiles of one to six: each remainder."""
    agree(library, make_batch([(37, 1), (5, 11)], heads=2 * group, head_size=72, pool=torch.bfloat16))


@RANDOM
@given(
    nodes=st.integers(1, 64),
    before=st.integers(0, 80),
    seed=st.integers(0, 1000),
    window=st.sampled_from([0, 0, 5, 40]),
    block_size=st.sampled_from([16, 64]),
)
def test_tree_masks(library: HostLibrary, nodes: int, before: int, seed: int, window: int, block_size: int) -> None:
    """Verification of a draft tree: up to 64 nodes, beside a plain decode and a wider mask than needed."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(nodes + 1, nodes + 3, dtype=torch.bool)
    mask[0, 0] = True
    mask[1:, :nodes] = random_tree(nodes, generator)
    agree(
        library,
        make_batch([(before + 3, 1), (before, nodes)], tree_mask=mask, sliding_window=window, block_size=block_size),
    )


@pytest.mark.parametrize("held", [0, 1])
def test_a_mask_of_one_column_is_plain_causality(library: HostLibrary, held: int) -> None:
    """Version 2 of the op: so a graph with a mask prefills prompts of any length. The reference says the same."""
    batch = make_batch([(3, 1), (20, 90)])
    column = torch.full((91, 1), held, dtype=torch.uint8)
    for op in (library.paged_attention, reference.paged_attention):
        pools = [batch.pool.clone() for _ in range(2)]
        plain, masked = batch.run(op, pools[0]), batch.run(op, pools[1], tree_mask=column)
        assert torch.equal(plain, masked) and torch.equal(bits(pools[0]), bits(pools[1]))


def test_chain_mask_has_the_bits_of_causality(library: HostLibrary) -> None:
    """A draft without branches is verified with exactly the numbers that plain decoding would have had."""
    batch = make_batch([(700, 9)], heads=6, pool=torch.bfloat16)
    chain = torch.ones(9, 9).tril().bool()
    plain = batch.run(library.paged_attention, batch.pool.clone())
    masked = batch.run(library.paged_attention, batch.pool.clone(), tree_mask=chain)
    assert torch.equal(bits(plain), bits(masked))


def test_row_without_visible_keys_gives_zeros(library: HostLibrary) -> None:
    batch = make_batch([(0, 2)], tree_mask=torch.tensor([[True, False], [False, False]]))
    out = batch.run(library.paged_attention, batch.pool.clone())
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().sum() > 0


@pytest.mark.parametrize("pool", [torch.float32, torch.float8_e4m3fn])
def test_sinks(library: HostLibrary, pool: torch.dtype) -> None:
    agree(library, make_batch([(540, 1), (3, 9)], pool=pool, sinks=torch.tensor([0.5, -3.0, 8.0, 0.0])))


@pytest.mark.parametrize("head_size", [64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_every_e4m3_value_comes_out_exactly(library: HostLibrary, head_size: int, group: int) -> None:
    """A request with one key returns its value; the 256 codes pass through every place of a head."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    for shift in range(0, 256, 37):
        value = codes.roll(shift)[:head_size].view(1, head_size)
        batch = make_batch([(0, 1)], heads=group, kv_heads=1, head_size=head_size, pool=torch.float8_e4m3fn)
        batch.value = value.clone()
        got = batch.run(library.paged_attention, batch.pool.clone(), k_scale=1.0, v_scale=1.0)
        want = value.repeat(1, group)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_uint8_pool_holds_e4m3_bits(library: HostLibrary) -> None:
    batch = make_batch([(20, 3)], pool=torch.float8_e4m3fn)
    as_bytes = batch.pool.clone().view(torch.uint8)
    expected = batch.run(library.paged_attention, batch.pool.clone())
    assert torch.equal(batch.run(library.paged_attention, as_bytes), expected)


def test_blocks_before_the_window_are_never_followed(library: HostLibrary) -> None:
    """A block manager may give them back: -1, or somebody else's block, makes no difference."""
    batch = make_batch([(300, 2)], sliding_window=40)
    expected = batch.run(library.paged_attention, batch.pool.clone())
    batch.block_table[0, : (300 - 40) // 16] = -1
    assert torch.equal(bits(batch.run(library.paged_attention, batch.pool.clone())), bits(expected))


def test_nan_is_not_hidden(library: HostLibrary) -> None:
    """A NaN key or query must not come out as a number, from an FP8 pool either."""
    for pool in POOLS:
        batch = make_batch([(70, 2)], heads=2, kv_heads=2, pool=pool)
        batch.key[1, 64] = float("nan")
        batch.query[0, 0] = float("nan")
        out = batch.run(library.paged_attention, batch.pool.clone())
        assert out[0, :64].isnan().all() and out[1, 64:].isnan().all()
        assert not out[1, :64].isnan().any()


# --- reproducibility ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", POOLS)
def test_a_request_alone_has_the_same_bits_as_in_any_batch(library: HostLibrary, pool: torch.dtype) -> None:
    requests = [(1300, 1), (0, 60), (513, 4), (77, 1), (511, 1)]
    batch = make_batch(requests, heads=6, pool=pool)
    together = batch.run(library.paged_attention, batch.pool.clone())
    for index in range(len(requests)):
        single = batch.alone(index)
        begin, end = int(batch.query_start[index]), int(batch.query_start[index + 1])
        assert torch.equal(bits(single.run(library.paged_attention, batch.pool.clone())), bits(together[begin:end]))


@pytest.mark.parametrize("block_size", [16, 128])
def test_prompt_in_pieces_has_the_same_bits_as_in_one_step(library: HostLibrary, block_size: int) -> None:
    """Chunked prefill, recompute after preemption and decode agree bit for bit, whatever the block size."""
    whole = make_batch([(0, 620)], heads=6, block_size=16, pool=torch.bfloat16)
    expected = whole.run(library.paged_attention, whole.pool.clone())
    other = make_batch([(0, 620)], heads=6, block_size=block_size, pool=torch.bfloat16)
    pool = other.pool.clone()
    begin = 0
    for size in (1, 300, 17, 1, 1, 200, 99, 1):
        piece = Batch(
            whole.query[begin : begin + size],
            whole.key[begin : begin + size],
            whole.value[begin : begin + size],
            pool,
            torch.tensor([0, size], dtype=torch.int32),
            torch.tensor([begin + size], dtype=torch.int32),
            other.block_table,
            whole.options,
        )
        assert torch.equal(bits(piece.run(library.paged_attention, pool)), bits(expected[begin : begin + size]))
        begin += size
    assert begin == 620


@pytest.mark.parametrize("requests", [[(2000, 1)], [(900, 1), (0, 200), (30, 1)], [(800, 8)]])
def test_threads_do_not_change_bits(library: HostLibrary, requests: list[tuple[int, int]]) -> None:
    batch = make_batch(requests, heads=6, pool=torch.bfloat16)
    results = []
    for threads in (1, 2, 3):
        library.set_threads(threads)
        results.append(batch.run(library.paged_attention, batch.pool.clone()))
    assert torch.equal(bits(results[0]), bits(results[1]))
    assert torch.equal(bits(results[0]), bits(results[2]))


def test_output_may_be_the_query(library: HostLibrary) -> None:
    batch = make_batch([(600, 3), (0, 70)])
    expected = batch.run(library.paged_attention, batch.pool.clone())
    own = Batch(**{**vars(batch), "query": batch.query.clone()})
    own.run(library.paged_attention, batch.pool.clone(), out=own.query)
    assert torch.equal(own.query, expected)


def test_empty_steps(library: HostLibrary) -> None:
    nothing = make_batch([])
    assert nothing.run(library.paged_attention, nothing.pool.clone()).shape == (0, 256)
    idle = make_batch([(5, 0), (9, 1), (4, 0)])
    agree(library, idle)
