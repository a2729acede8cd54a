"""The INT4 linear: its reference, and one order of summation whatever the rows, on every instruction set here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins.host import int4
from plugins.host.library import HostLibrary
from plugins.structs import arguments
from tests.plugins.batches import ACTIVATIONS
from trtforge.ground.errors import ForgeError
from trtforge.native import ops

RANDOM = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
CODES = {getattr(torch, name): number for name, number in ops.DTYPES.items()}


class Linear:
    """Random integers, scales and a bias, packed and as numbers."""

    def __init__(self, outputs: int, inputs: int, group: int, seed: int, bias: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.integers = torch.randint(-8, 8, (outputs, inputs), generator=generator, dtype=torch.int8)
        self.scales = torch.rand(outputs, inputs // group, generator=generator) * 0.01 + 1e-3
        self.bias = 50 * torch.randn(outputs, generator=generator) if bias else None
        nibbles = (self.integers & 15).to(torch.uint8)
        self.words = int4.pack_weights(nibbles[:, 0::2] | (nibbles[:, 1::2] << 4))
        self.packed_scales = int4.pack_scales(self.scales)
        self.group = group
        self.x = torch.randn(120, inputs + 7, generator=generator)[:, 3 : inputs + 3]

    def __call__(
        self, library: HostLibrary, x: torch.Tensor, out_dtype: torch.dtype, /, **changed: Any
    ) -> torch.Tensor:
        outputs, inputs = self.integers.shape
        out = torch.empty(len(x), outputs, dtype=out_dtype)
        fields = {
            "x": x.data_ptr(), "x_stride": x.stride(0), "weights": self.words.data_ptr(),
            "scales": self.packed_scales.data_ptr(), "bias": None if self.bias is None else self.bias.data_ptr(),
            "out": out.data_ptr(), "out_stride": outputs, "rows": len(x), "outputs": outputs, "inputs": inputs,
            "group": self.group, "x_dtype": CODES[x.dtype], "out_dtype": CODES[out_dtype],
        }  # fmt: skip
        library.run_op(ops.INT4_LINEAR, arguments(ops.INT4_LINEAR, **(fields | changed)))
        return out

    def meaning(self) -> torch.Tensor:
        blocks = self.integers.double().view(len(self.integers), -1, self.group)
        return (blocks * self.scales.double()[..., None]).view(self.integers.shape)


@RANDOM
@given(
    outputs=st.integers(1, 150),
    groups=st.integers(1, 4),
    group=st.sampled_from((8, 16, 24, 64, 128)),
    dtype=st.sampled_from(ACTIVATIONS),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_is_the_row_alone_and_right(
    library: HostLibrary, outputs: int, groups: int, group: int, dtype: torch.dtype, bias: bool, seed: int
) -> None:
    linear = Linear(outputs, groups * group, group, seed, bias)
    x = linear.x.to(dtype)
    whole = linear(library, x, torch.float32)
    want = x.double() @ linear.meaning().T + (0 if linear.bias is None else linear.bias.double())
    size = x.double().abs() @ linear.meaning().abs().T + (0 if linear.bias is None else linear.bias.double().abs())
    assert ((whole - want).abs() <= 1e-6 * size).all()
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 13, 95, 96, 97, 102):
        assert torch.equal(linear(library, x[:rows], torch.float32), whole[:rows]), rows
    for row in (0, 5, 96, 119):
        assert torch.equal(linear(library, x[row : row + 1], torch.float32), whole[row : row + 1]), row
    assert torch.equal(linear(library, x, dtype), whole.to(dtype)), "rounded once, at the end"


def test_threads_do_not_change_a_bit(library: HostLibrary) -> None:
    linear = Linear(1152, 896, 128, seed=1)
    found = []
    try:
        for threads in (1, 2, 3, 7):
            library.set_threads(threads)
            found.append([linear(library, linear.x[:rows], torch.float32) for rows in (1, 5, 40)])
    finally:
        library.set_threads(0)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"group": 12}, "groups of 12 do not divide 64 inputs"),
        ({"group": 48}, "groups of 48"),
        ({"group": 0}, "groups of 0"),
        ({"x_dtype": ops.DTYPES["float8_e4m3fn"]}, "x dtype must be"),
        ({"out_dtype": 9}, "out dtype must be"),
        ({"weights": None}, "weights or scales is null"),
        ({"x": None}, "x or out is null"),
        ({"x_stride": 8}, "x: row stride 8"),
        ({"out_stride": 8}, "out: row stride 8"),
        ({"rows": -1}, "rows -1"),
    ],
)
def test_refusals(host: HostLibrary, changed: dict[str, Any], says: str) -> None:
    linear = Linear(20, 64, 32, seed=2)
    with pytest.raises(ForgeError, match=says):
        linear(host, linear.x[:3], torch.float32, **changed)


def test_packing_moves_bits_and_changes_none() -> None:
    linear = Linear(37, 48, 16, seed=3)
    assert linear.words.shape == (3, 6, 16)
    assert torch.equal(int4.unpack_weights(linear.words, 37), linear.integers)
    assert torch.equal(int4.unpack_scales(linear.packed_scales, 37), linear.scales)


def test_the_checked_call(host: HostLibrary) -> None:
    linear = Linear(37, 64, 32, seed=4)
    x = linear.x.bfloat16()
    packed: dict[str, Any] = {"outputs": 37, "group": 32, "bias": linear.bias}
    got = host.int4_linear(x, linear.words, linear.packed_scales, **packed)
    assert got.dtype == torch.bfloat16 and torch.equal(got, linear(host, x, torch.bfloat16))
    for wrong in (
        {"outputs": 60},
        {"group": 16},
        {"group": 0},
        {"bias": torch.zeros(36)},
        {"bias": torch.zeros(37).bfloat16()},
    ):
        with pytest.raises(ForgeError, match="TF-OPS-005"):
            host.int4_linear(x, linear.words, linear.packed_scales, **(packed | wrong))
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        host.int4_linear(x, linear.words.float(), linear.packed_scales, **packed)
