"""What PagedAttention refuses, with which code; a refused call writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from plugins.host.library import HostLibrary
from plugins.structs import arguments
from tests.plugins.batches import bits, make_batch
from trtforge.ground.errors import ForgeError
from trtforge.native import ops

Change = Callable[[Any], None]


def prepared() -> tuple[Any, list[torch.Tensor]]:
    """A legal raw call, and the tensors that it points to."""
    batch = make_batch([(20, 3), (7, 1)], heads=4, kv_heads=2)
    out = torch.zeros(4, 256)
    tensors = [
        batch.query.contiguous(), batch.key.contiguous(), batch.value.contiguous(), batch.pool, out,
        batch.query_start, batch.sequence_lengths, batch.block_table,
    ]  # fmt: skip
    names = ("query", "key", "value", "kv_pool", "output", "query_start", "sequence_lengths", "block_table")
    args = arguments(
        ops.PAGED_ATTENTION,
        **{name: tensor.data_ptr() for name, tensor in zip(names, tensors, strict=True)},
        query_stride=256, key_stride=128, value_stride=128, output_stride=256, block_table_stride=3, num_tokens=4,
        num_requests=2, max_blocks=3, num_blocks=int(batch.pool.shape[0]), block_size=16, num_heads=4,
        num_kv_heads=2, head_size=64, activation_dtype=0, pool_dtype=0, scale=0.125,
    )  # fmt: skip
    return args, tensors


def field(name: str, value: object) -> Change:
    return lambda args: setattr(args, name, value)


def entry(name: str, index: int, value: int) -> Change:
    """Overwrite one number of an int32 index tensor."""
    import ctypes

    def change(args: Any) -> None:
        ctypes.cast(getattr(args, name), ctypes.POINTER(ctypes.c_int32))[index] = value

    return change


FAULTS: list[tuple[str, str, Change]] = [
    ("no query", "TF-OPS-101", field("query", None)),
    ("no pool", "TF-OPS-101", field("kv_pool", None)),
    ("no query_start", "TF-OPS-101", field("query_start", None)),
    ("activation fp8", "TF-OPS-102", field("activation_dtype", 3)),
    ("pool dtype", "TF-OPS-102", field("pool_dtype", 4)),
    ("negative tokens", "TF-OPS-103", field("num_tokens", -1)),
    ("head size 48", "TF-OPS-104", field("head_size", 48)),
    ("head size 100", "TF-OPS-104", field("head_size", 100)),
    ("head size 264", "TF-OPS-104", field("head_size", 264)),
    ("block size 48", "TF-OPS-105", field("block_size", 48)),
    ("heads over kv heads", "TF-OPS-106", field("num_kv_heads", 3)),
    ("start not 0", "TF-OPS-107", entry("query_start", 0, 1)),
    ("start decreases", "TF-OPS-107", entry("query_start", 1, -2)),
    ("start past the end", "TF-OPS-107", entry("query_start", 2, 9)),
    ("start short of the end", "TF-OPS-107", entry("query_start", 2, 3)),
    ("length below new tokens", "TF-OPS-108", entry("sequence_lengths", 0, 2)),
    ("length above the table", "TF-OPS-108", entry("sequence_lengths", 0, 49)),
    ("block -1", "TF-OPS-109", entry("block_table", 0, -1)),
    ("block past the pool", "TF-OPS-109", entry("block_table", 3, 1000)),
    ("block not allocated", "TF-OPS-109", entry("sequence_lengths", 1, 17)),
    ("query rows overlap", "TF-OPS-110", field("query_stride", 255)),
    ("table rows overlap", "TF-OPS-110", field("block_table_stride", 2)),
    ("scale 0", "TF-OPS-111", field("scale", 0.0)),
    ("scale NaN", "TF-OPS-111", field("scale", float("nan"))),
    ("soft cap negative", "TF-OPS-111", field("soft_cap", -1.0)),
    ("window negative", "TF-OPS-111", field("sliding_window", -1)),
    ("k_scale on a float pool", "TF-OPS-111", field("k_scale", 2.0)),
    ("another struct", "TF-OPS-003", field("struct_size", 8)),
]


@pytest.mark.parametrize(("code", "change"), [pytest.param(c, f, id=n) for n, c, f in FAULTS])
def test_refusals(host: HostLibrary, code: str, change: Change) -> None:
    args, tensors = prepared()
    before = bits(tensors[3]).clone()
    host.run_op(ops.PAGED_ATTENTION, args)  # legal as it stands
    tensors[3].copy_(before.view(torch.float32).view_as(tensors[3]))
    tensors[4].zero_()
    change(args)
    with pytest.raises(ForgeError) as refused:
        host.run_op(ops.PAGED_ATTENTION, args)
    assert refused.value.code == code
    assert refused.value.remedies and refused.value.why
    assert torch.equal(bits(tensors[3]), before)
    assert not tensors[4].any()


def test_tree_mask_narrower_than_the_draft(host: HostLibrary) -> None:
    batch = make_batch([(4, 5)], tree_mask=torch.ones(5, 4, dtype=torch.bool))
    with pytest.raises(ForgeError, match="TF-OPS-112"):
        batch.run(host.paged_attention, batch.pool)


def test_message_names_the_entry(host: HostLibrary) -> None:
    batch = make_batch([(20, 1)])
    batch.block_table[0, 1] = 77
    with pytest.raises(ForgeError, match=r"block_table\[0\]\[1\] is 77, outside the pool of 4 blocks"):
        batch.run(host.paged_attention, batch.pool)


@pytest.mark.parametrize(
    "broken",
    [
        {"query": torch.zeros(2, 255)},
        {"query": torch.zeros(2, 256, dtype=torch.float64)},
        {"query": torch.zeros(256, 2).t()},
        {"key": torch.zeros(2, 128, dtype=torch.bfloat16)},
        {"value": torch.zeros(3, 128)},
        {"pool": torch.zeros(4, 2, 2, 16, 32)},
        {"pool": torch.zeros(4, 2, 2, 64, 16).transpose(3, 4)},
        {"query_start": torch.tensor([0, 2])},
        {"sequence_lengths": torch.tensor([9], dtype=torch.int64)},
        {"block_table": torch.zeros(2, 1, dtype=torch.int32)},
    ],
)
def test_tensors_of_the_wrong_kind(host: HostLibrary, broken: dict[str, torch.Tensor]) -> None:
    batch = make_batch([(7, 2)])
    for name, tensor in broken.items():
        setattr(batch, name, tensor)
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        batch.run(host.paged_attention, batch.pool)
