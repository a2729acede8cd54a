"""Conformance of PagedKVMove: host library, CUDA kernels under the shim and on a GPU; bytes are compared."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import reference_trees as reference
from plugins.shared_ops import SharedOps
from tests.plugins.batches import POOLS, bits
from trtforge.ground.errors import ForgeError

RANDOM = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)


@dataclasses.dataclass
class Move:
    """Everything one PagedKVMove takes."""

    pools: list[torch.Tensor]
    block_table: torch.Tensor
    base_positions: torch.Tensor
    path: torch.Tensor
    lengths: torch.Tensor

    def run(self, move: object, device: str = "cpu") -> list[torch.Tensor]:
        pools = [pool.clone().to(device) for pool in self.pools]
        rest = (self.block_table, self.base_positions, self.path, self.lengths)
        move(pools, *(tensor.to(device) for tensor in rest))
        return [pool.cpu() for pool in pools]


def make_move(requests: int, *, dtype: torch.dtype = torch.bfloat16, block_size: int = 16, head_size: int = 64,
              kv_heads: int = 2, layers: int = 2, total: int = 20, seed: int = 0) -> Move:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    bases = torch.randint(0, 3 * block_size, (requests,), generator=generator).int()
    columns = 3 + -(-total // block_size) + 1
    table = torch.randperm(requests * columns, generator=generator).int().view(requests, columns)
    path = torch.full((requests, total), -1, dtype=torch.int32)
    lengths = torch.randint(0, total + 1, (requests,), generator=generator).int()
    for b, length in enumerate(lengths.tolist()):
        nodes = torch.randperm(total - 1, generator=generator)[: max(length - 1, 0)].sort().values + 1
        path[b, :length] = torch.cat([torch.zeros(1, dtype=torch.int64), nodes])[:length].int()
    shape = (requests * columns, 2, kv_heads, block_size, head_size)
    raw = [
        torch.randint(0, 256, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8) for _ in range(layers)
    ]
    return Move([x.flatten(-2).view(dtype) for x in raw], table, bases, path, lengths)


def same_pools(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(actual, expected, strict=True))


@RANDOM
@given(
    requests=st.integers(1, 4),
    dtype=st.sampled_from(POOLS),
    block_size=st.sampled_from([16, 32, 64, 128]),
    head_size=st.sampled_from([64, 72, 128, 256]),
    layers=st.integers(1, 3),
    total=st.integers(1, 64),
    seed=st.integers(0, 1000),
)
def test_moves(
    ops: SharedOps, requests: int, dtype: torch.dtype, block_size: int, head_size: int, layers: int, total: int,
    seed: int,
) -> None:  # fmt: skip
    move = make_move(
        requests, dtype=dtype, block_size=block_size, head_size=head_size, layers=layers, total=total, seed=seed
    )
    same_pools(move.run(ops.paged_kv_move, ops.device), move.run(reference.paged_kv_move))


def test_overlapping_moves_keep_every_row(ops: SharedOps) -> None:
    """Path 0, 2, 3, 4, …: each target is the next move's source, across blocks."""
    move = make_move(1, total=40, layers=1)
    move.base_positions[0] = 7
    move.path[0] = torch.tensor([0, *range(2, 41)])[:40].int()
    move.path[0, 39] = -1
    move.lengths[0] = 39
    same_pools(move.run(ops.paged_kv_move, ops.device), move.run(reference.paged_kv_move))


def test_more_pools_than_one_launch_takes(ops: SharedOps) -> None:
    move = make_move(2, layers=131, kv_heads=1, total=5, seed=1)
    same_pools(move.run(ops.paged_kv_move, ops.device), move.run(reference.paged_kv_move))


def test_moves_then_attention_see_a_contiguous_context(host: SharedOps) -> None:
    """Verifying a tree, moving its accepted path and decoding on equals having decoded that path from the start."""
    from plugins import reference as attention
    from tests.plugins.batches import make_batch

    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    tree = make_batch([(13, 4)], tree_mask=mask, block_size=16)
    verified = tree.pool.clone()
    tree.run(attention.paged_attention, verified)
    path = torch.tensor([[0, 2, 3, -1]], dtype=torch.int32)
    host.paged_kv_move([verified], tree.block_table, torch.tensor([13], dtype=torch.int32), path,
                       torch.tensor([3], dtype=torch.int32))  # fmt: skip
    chain = dataclasses.replace(
        tree, query=tree.query[[0, 2, 3]], key=tree.key[[0, 2, 3]], value=tree.value[[0, 2, 3]],
        query_start=torch.tensor([0, 3], dtype=torch.int32), sequence_lengths=torch.tensor([16], dtype=torch.int32),
        options={**tree.options, "tree_mask": None},
    )  # fmt: skip
    decoded = tree.pool.clone()
    chain.run(attention.paged_attention, decoded)
    block = int(tree.block_table[0, 0])
    assert torch.equal(bits(verified[block]), bits(decoded[block]))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"path": (0, 1, 0)}, "TF-OPS-114"),
        ({"path": (0, 0, -1)}, "TF-OPS-114"),
        ({"lengths": (1, 99)}, "TF-OPS-108"),
        ({"lengths": (0, -1)}, "TF-OPS-108"),
        ({"base_positions": (0, 4000)}, "TF-OPS-108"),
        ({"base_positions": (0, -1)}, "TF-OPS-108"),
        ({"block_table": (0, 0, 999)}, "TF-OPS-109"),
    ],
)
def test_refused_moves_write_nothing(ops: SharedOps, change: dict[str, tuple[int, ...]], code: str) -> None:
    move = make_move(2, total=6, layers=1)
    move.base_positions.fill_(3)
    move.lengths.fill_(3)
    move.path[:, :3] = torch.tensor([0, 2, 5])
    for name, (*where, value) in change.items():
        getattr(move, name)[tuple(where)] = value
    pools = [pool.clone().to(ops.device) for pool in move.pools]
    rest = (move.block_table, move.base_positions, move.path, move.lengths)
    with pytest.raises(ForgeError, match=code):
        ops.paged_kv_move(pools, *(tensor.to(ops.device) for tensor in rest))
    same_pools([pool.cpu() for pool in pools], move.pools)


def test_pools_of_the_wrong_kind(ops: SharedOps) -> None:
    move = make_move(1)
    for pools, code in (
        ([move.pools[0], move.pools[0][:1]], "TF-OPS-005"),
        ([move.pools[0].transpose(2, 3)], "TF-OPS-005"),
        ([torch.zeros(9, 2, 2, 24, 64)], "TF-OPS-105"),
        ([torch.zeros(9, 2, 2, 16, 60)], "TF-OPS-104"),
    ):
        with pytest.raises(ForgeError, match=code):
            dataclasses.replace(move, pools=pools).run(ops.paged_kv_move, ops.device)
