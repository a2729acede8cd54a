"""The small formats against their definitions: exhaustive where the format is small enough."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.emulation import dynamic_block_quantize
from trtforge.formats import elements as em
from trtforge.formats import int4_awq

E2M1_BY_CODE = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def all_codes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8)


def spread_floats(count: int = 200_000, seed: int = 0) -> torch.Tensor:
    """Random float32 over many magnitudes, both signs, with every E4M3 value, midpoint and neighbour."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(count, generator=generator) * torch.exp2(torch.randint(-14, 12, (count,), generator=generator))
    codes = em.e4m3_decode(all_codes())
    finite = torch.sort(codes[torch.isfinite(codes)]).values
    middle = (finite[1:] + finite[:-1]) / 2
    edges = torch.cat((finite, middle))
    near = torch.cat([torch.nextafter(edges, torch.full_like(edges, sign)) for sign in (-1e9, 1e9)])
    return torch.cat((wide, edges, near, torch.tensor([0.0, -0.0, 448.0, 464.0, 480.0, 1e30, -1e30])))


def test_all_e4m3_codes_decode_as_torch_does() -> None:
    expected = all_codes().view(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(torch.nan_to_num(em.e4m3_decode(all_codes()), nan=-1), torch.nan_to_num(expected, nan=-1))


def test_all_e4m3_codes_survive_a_round_trip() -> None:
    decoded = em.e4m3_decode(all_codes())
    finite = torch.isfinite(decoded)
    assert torch.equal(em.e4m3_encode(decoded)[finite], all_codes()[finite])
    assert int(em.e4m3_encode(torch.tensor([float("nan")]))) == 0x7F


def test_e4m3_rounding_is_nearest_even_and_saturates() -> None:
    x = spread_floats()
    clamped = x.clamp(-448, 448)
    assert torch.equal(em.e4m3_round(x), clamped.to(torch.float8_e4m3fn).to(torch.float32))
    assert torch.equal(em.e4m3_encode(x), clamped.to(torch.float8_e4m3fn).view(torch.uint8))
    assert torch.equal(em.e4m3_round_fast(x), em.e4m3_round(x))
    assert em.e4m3_round(torch.tensor([1e30, -1e30])).tolist() == [448, -448]


def test_e2m1_codes_decode_to_the_table() -> None:
    codes = torch.arange(16).to(torch.uint8)
    assert em.e2m1_decode(codes).tolist() == E2M1_BY_CODE
    assert torch.equal(em.e2m1_encode(em.e2m1_decode(codes)) & 7, codes & 7)


@pytest.mark.parametrize(
    ("value", "expected"),
    # every midpoint goes to the neighbour whose mantissa bit is zero
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5.0, 4), (6.0, 6), (7.0, 6), (float("inf"), 6)],
)
def test_e2m1_ties_to_even_and_saturation(value: float, expected: float) -> None:
    assert em.e2m1_round(torch.tensor([value, -value])).tolist() == [expected, -expected]


def test_e2m1_rounds_to_the_nearest_value() -> None:
    x = torch.linspace(-7, 7, 28_001)
    table = torch.tensor(E2M1_BY_CODE)
    nearest = (x.unsqueeze(-1).clamp(-6, 6) - table).abs().amin(-1)
    torch.testing.assert_close((em.e2m1_round(x) - x.clamp(-6, 6)).abs(), nearest, rtol=0, atol=0)


def test_e2m1_nan_propagates_through_rounding_and_saturates_in_codes() -> None:
    nan = torch.tensor([float("nan")])
    assert torch.isnan(em.e2m1_round(nan)).all()
    assert int(em.e2m1_encode(nan)) == 7


def test_nibble_order_puts_the_even_column_low() -> None:
    codes = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert em.pack_nibbles(codes).tolist() == [[0x21, 0x0F]]
    assert torch.equal(em.unpack_nibbles(em.pack_nibbles(codes)), codes)


def test_int4_rows_pack_two_rows_into_a_byte() -> None:
    values = torch.tensor([[-8, 7], [1, -1], [0, 3], [-3, 2]], dtype=torch.int8)
    packed = int4_awq.pack_rows(values)
    assert packed.tolist() == [[0x18, 0xF7], [0xD0, 0x23]]
    assert torch.equal(int4_awq.unpack_rows(packed), values)


finite_rows = st.integers(0, 2**31 - 1).map(
    lambda seed: torch.randn(3, 64, generator=torch.Generator().manual_seed(seed)) * (2.0 ** (seed % 17 - 8))
)


@settings(max_examples=40, deadline=None)
@given(finite_rows)
def test_nvfp4_fake_quant_equals_pack_and_unpack(weight: torch.Tensor) -> None:
    scale = em.two_level_scale(weight.abs().max())
    packed, block_scales = em.quantize_two_level(weight, scale)
    assert packed.shape == (3, 32)
    assert block_scales.shape == (3, 4)
    assert block_scales.dtype == torch.float8_e4m3fn
    unpacked = em.dequantize_two_level(packed, block_scales, scale)
    torch.testing.assert_close(unpacked, em.fake_quant_two_level(weight, scale), rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@given(finite_rows)
def test_nvfp4_error_is_bounded_by_the_block(weight: torch.Tensor) -> None:
    scale = em.two_level_scale(weight.abs().max())
    error = (em.fake_quant_two_level(weight, scale) - weight).abs().unflatten(-1, (-1, 16))
    amax = weight.abs().unflatten(-1, (-1, 16)).amax(-1, keepdim=True)
    # half of E2M1's widest step (1 of 6), plus saturation when the E4M3 scale rounded down by 1/16
    assert bool((error <= amax * (1 / 6 + 1 / 16) + 1e-6 * amax).all())


@settings(max_examples=40, deadline=None)
@given(finite_rows, st.sampled_from([16, 32]))
def test_mx_fake_quant_keeps_what_it_already_kept(x: torch.Tensor, block: int) -> None:
    for fake_quant in (em.fake_quant_mxfp4, em.fake_quant_mxfp8):
        once = fake_quant(x, block=block)
        assert torch.isfinite(once).all()
        assert torch.equal(fake_quant(once, block=block), once)


def test_zero_blocks_stay_zero() -> None:
    x = torch.zeros(2, 32)
    x[1, 16:] = 1.0
    kept = em.fake_quant_two_level(x, em.two_level_scale(x.abs().max()))
    assert torch.equal(kept, x)
    assert torch.equal(em.fake_quant_mxfp4(torch.zeros(2, 32)), torch.zeros(2, 32))


def test_mx_exponent_is_exact_at_powers_of_two() -> None:
    x = torch.zeros(3, 32)
    x[:, 0] = torch.tensor([4.0, 3.9999998, 8.0])
    assert em.mx_block_exponents(x, element_emax=2).flatten().tolist() == [0, -1, 1]


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        em.fake_quant_two_level(torch.zeros(2, 24), 1.0)


def test_unknown_element_format_is_refused() -> None:
    with pytest.raises(ValueError, match="no emulation"):
        dynamic_block_quantize(torch.zeros(1, 16), 16, torch.ones(()), 6, 3, 8, 4)


@given(st.integers(0, 999), st.sampled_from((1, 7, 64)))
def test_int8_and_rows_of_e4m3_stay_within_half_a_step(seed: int, width: int) -> None:
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(seed)) * torch.tensor([[1e-3], [1.0], [1e3]])
    x[1] = 0
    scale = x.abs().amax() / 127
    codes = em.to_int8(x, scale)
    assert codes.dtype == torch.int8 and torch.equal(em.to_int8(codes.float() * scale, scale), codes)
    assert (em.fake_quant_int8(x, scale) - x).abs().max() <= scale / 2 * (1 + 1e-5)
    assert em.to_int8(torch.tensor([1e9, -1e9]), 1.0).tolist() == [127, -128]
    kept = em.fake_quant_e4m3_rows(x)
    assert torch.equal(kept[1], torch.zeros(width))
    # a mantissa of three bits, and the smallest step of the row
    assert ((kept - x).abs() <= x.abs() / 16 * (1 + 1e-5) + x.abs().amax(-1, keepdim=True) / 448 * 2.0**-10).all()
    torch.testing.assert_close(kept.abs().amax(-1), x.abs().amax(-1), rtol=1e-6, atol=0)


@given(st.integers(0, 999), st.integers(1, 6), st.sampled_from((16, 32, 64)))
def test_packed_integers_come_back(seed: int, pairs: int, columns: int) -> None:
    """ModelOpt's packing of rows, what ONNX makes of it, and back."""
    from trtforge.formats.int4_awq import pack_rows, repack_rows, unpack_rows

    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-8, 8, (2 * pairs, columns), generator=generator, dtype=torch.int8)
    packed = pack_rows(codes)
    assert packed.shape == (pairs, columns) and torch.equal(unpack_rows(packed), codes)
    onnx = torch.from_numpy(repack_rows(packed.numpy()))
    assert torch.equal(em.unpack_int4(onnx, tuple(codes.shape), True), codes)
