"""Random ragged batches for the attention tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from plugins import reference

#: Largest difference allowed against the float32 reference, by activation dtype: what one rounding of an output
#: of magnitude below 4 costs, and for float32 the noise of another order of summation.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
POOLS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
ACTIVATIONS = (torch.float32, torch.bfloat16, torch.float16)


@dataclasses.dataclass
class Batch:
    """Everything one PagedAttention call takes."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    pool: torch.Tensor
    query_start: torch.Tensor
    sequence_lengths: torch.Tensor
    block_table: torch.Tensor
    options: dict[str, Any]

    def run(self, op: Any, pool: torch.Tensor, **changes: Any) -> torch.Tensor:
        """Call ``op`` (the library's method or the reference) on ``pool``."""
        out: torch.Tensor = op(
            self.query, self.key, self.value, pool, self.query_start, self.sequence_lengths, self.block_table,
            **{**self.options, **changes},
        )  # fmt: skip
        return out

    def to(self, device: str) -> Batch:
        """The same batch on a device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        options = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in self.options.items()
        }
        return dataclasses.replace(self, **moved, options=options)

    def alone(self, request: int) -> Batch:
        """The same request as a batch of one."""
        begin, end = int(self.query_start[request]), int(self.query_start[request + 1])
        options = dict(self.options)
        if options.get("tree_mask") is not None:
            options["tree_mask"] = options["tree_mask"][begin:end]
        return Batch(
            self.query[begin:end],
            self.key[begin:end],
            self.value[begin:end],
            self.pool,
            torch.tensor([0, end - begin], dtype=torch.int32),
            self.sequence_lengths[request : request + 1],
            self.block_table[request : request + 1],
            options,
        )


def make_batch(
    requests: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 16,
    pool: torch.dtype = torch.float32,
    activation: torch.dtype = torch.float32,
    seed: int = 0,
    spare_columns: int = 1,
    tree_mask: torch.Tensor | None = None,
    **options: Any,
) -> Batch:
    """A batch of (context before, new tokens) pairs over a pool with shuffled blocks; q, k, v are slices of one qkv.

    Slots that no request owns hold NaN: reading one shows in the result.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = [before + fresh for before, fresh in requests]
    used = [-(-length // block_size) for length in lengths]
    columns = max(used, default=0) + spare_columns
    count = sum(used) + 2
    order = torch.randperm(count, generator=generator).int()
    table = torch.full((len(requests), columns), -1, dtype=torch.int32)
    at = 0
    for row, blocks in enumerate(used):
        table[row, :blocks] = order[at : at + blocks]
        at += blocks
    shape = (count, 2, kv_heads, block_size, head_size)
    values = torch.randn(shape, generator=generator)
    for row, length in enumerate(lengths):
        if length % block_size:
            values[int(table[row, length // block_size]), :, :, length % block_size :] = float("nan")
    for block in order[at:].tolist():
        values[block] = float("nan")
    if pool == torch.float8_e4m3fn:
        options.setdefault("k_scale", 0.0173)
        options.setdefault("v_scale", 0.0061)
        stored = torch.where(values.isnan(), values, values / 0.0117)
        kv_pool = reference.to_e4m3(stored)
    else:
        kv_pool = values.to(pool)
    tokens = sum(fresh for _, fresh in requests)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_size, generator=generator).to(activation)
    starts = torch.tensor([0, *(fresh for _, fresh in requests)]).cumsum(0).int()
    options.update(num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, tree_mask=tree_mask)
    cut = heads * head_size, (heads + kv_heads) * head_size
    return Batch(
        qkv[:, : cut[0]], qkv[:, cut[0] : cut[1]], qkv[:, cut[1] :], kv_pool, starts,
        torch.tensor(lengths, dtype=torch.int32), table, options,
    )  # fmt: skip


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes: equal means bit-identical, NaN included."""
    return tensor.contiguous().view(torch.uint8)


def random_tree(nodes: int, generator: torch.Generator) -> torch.Tensor:
    """Ancestor-or-self mask [nodes, nodes] of a random tree whose parents come before their children."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        parent = int(torch.randint(0, node, (1,), generator=generator))
        mask[node] |= mask[parent]
    return mask
