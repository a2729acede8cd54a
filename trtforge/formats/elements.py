"""Elements of four and eight bits in plain PyTorch: E2M1, E4M3, INT4, block scales, and their packings.

Policy: every function rounds exactly as the format's definition says (to nearest, ties to even,
saturating), on any device, with float32 arithmetic; nothing here depends on a GPU library. Figures
that come from these functions instead of a GPU's matrix units are labelled "emulated" by whoever
reports them. NaN propagates through fake quantization, so that a fault upstream stays visible.

Sources: OCP Microscaling Formats specification 1.0 (E2M1, E4M3, E8M0, blocks of 32),
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf.

Shape letters: N rows, K columns, G block length.
"""

from __future__ import annotations

import math

import torch

from trtforge.formats.base import LEAST_SCALE

E2M1_MAX = 6.0
E4M3_MAX = 448.0
#: smallest positive E4M3 (subnormal)
E4M3_TINY = 2.0**-9
#: the eight magnitudes of E2M1, by the low three bits of a code
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


# --- E4M3 ---------------------------------------------------------------------------------------


def e4m3_decode(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes (sign, 4 exponent bits with bias 7, 3 mantissa bits) as float32; 0x7F and 0xFF are NaN."""
    bits = codes.to(torch.int32)
    exponent, mantissa = (bits >> 3) & 0xF, (bits & 0x7).to(torch.float32)
    normal = torch.ldexp(1 + mantissa / 8, exponent - 7)
    value = torch.where(exponent == 0, mantissa * E4M3_TINY, normal)
    value = torch.where((bits & 0x7F) == 0x7F, torch.full_like(value, float("nan")), value)
    return torch.where(bits & 0x80 != 0, -value, value)


def e4m3_round(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the nearest E4M3 value, ties to even, saturating at ±448."""
    clamped = x.to(torch.float32).clamp(-E4M3_MAX, E4M3_MAX)
    _, exponent = torch.frexp(clamped)
    # frexp's mantissa lies in [1/2, 1): 4 significant bits means a step of 2^(exponent-4); subnormals share 2^-9
    step = torch.ldexp(torch.ones_like(clamped), (exponent - 4).clamp(min=-9))
    return torch.round(clamped / step) * step


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """float32 as uint8 E4M3 codes: nearest, ties to even, saturating; NaN becomes 0x7F."""
    value = e4m3_round(x)
    mantissa, exponent = torch.frexp(value.abs())
    subnormal = value.abs() < 2.0**-6
    field = torch.where(subnormal, torch.zeros_like(exponent), exponent - 1 + 7)
    fraction = torch.where(subnormal, value.abs() / E4M3_TINY, (2 * mantissa - 1) * 8)
    codes = (field << 3) + torch.nan_to_num(fraction).to(torch.int32)
    codes = torch.where(torch.isnan(value), torch.full_like(codes, 0x7F), codes)
    return (codes + torch.where(torch.signbit(value), 0x80, 0)).to(torch.uint8)


def fake_quant_e4m3(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """``round_e4m3(x / scale) * scale`` in float32: what an FP8 tensor with one scale holds.

    Uses torch's own E4M3 conversion after clamping (the conversion alone does not saturate); it equals
    :func:`e4m3_round` on every input and is several times faster.
    """
    return to_e4m3(x, scale).to(torch.float32).mul_(scale)


def to_e4m3(x: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """``x / scale`` saturated and rounded to float8_e4m3fn; NaN stays NaN."""
    return (x.to(torch.float32) / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def fake_quant_e4m3_rows(x: torch.Tensor) -> torch.Tensor:
    """What E4M3 keeps of ``x`` [..., K] when each row has a scale of its own, as float32: its largest becomes 448."""
    wide = x.to(torch.float32)
    return fake_quant_e4m3(wide, (wide.abs().amax(-1, keepdim=True) / E4M3_MAX).clamp_(min=LEAST_SCALE))


def e4m3_round_fast(x: torch.Tensor) -> torch.Tensor:
    """:func:`e4m3_round` by torch's own conversion (same values, tested)."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)


# --- INT8 ---------------------------------------------------------------------------------------


def to_int8(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """``x / scale`` rounded to the nearest integer, ties to even, saturating at -128 and 127: int8."""
    return (x.to(torch.float32) / scale).round_().clamp_(-128, 127).to(torch.int8)


def fake_quant_int8(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """What INT8 under ``scale`` keeps of ``x``, as float32."""
    return to_int8(x, scale).to(torch.float32).mul_(scale)


# --- E2M1 ---------------------------------------------------------------------------------------


def e2m1_round(x: torch.Tensor) -> torch.Tensor:
    """float32 rounded to the nearest E2M1 value (0, 0.5, 1, 1.5, 2, 3, 4, 6), ties to even, saturating at ±6."""
    clamped = x.to(torch.float32).clamp(-E2M1_MAX, E2M1_MAX)
    # the exponent's bits alone are the power of two below the magnitude: half of it, and 0.5 at least, is the step;
    # steps are powers of two, so both the division and the product are exact
    step = (clamped.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=1.0).mul_(0.5)
    return (clamped / step).round_().mul_(step)


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """float32 as uint8 codes 0..15 (bit 3 is the sign); NaN saturates, as the hardware conversion does.

    Zero always encodes as 0: a negative value that rounds to zero keeps its sign bit (code 8), as ModelOpt's
    packer writes it; both codes decode to zero.
    """
    value = torch.nan_to_num(e2m1_round(x), nan=E2M1_MAX)
    magnitude = value.abs()
    low = torch.where(magnitude <= 2, magnitude * 2, torch.where(magnitude < 6, magnitude + 2, magnitude + 1))
    sign = torch.where(x < 0, 8, 0)
    return (low.to(torch.int32) + sign).to(torch.uint8)


def e2m1_decode(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes 0..15 as float32."""
    table = torch.tensor([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)], device=codes.device)
    return table[codes.to(torch.int64)]


# --- nibbles and blocks -------------------------------------------------------------------------


def pack_nibbles(codes_NK: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 [..., K] → bytes [..., K/2]; the even column is the low nibble (ModelOpt's and ONNX's order)."""
    return codes_NK[..., 0::2] | (codes_NK[..., 1::2] << 4)


def unpack_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [..., K/2] → codes 0..15 [..., K]; the inverse of :func:`pack_nibbles`."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def unpack_flat(data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """ONNX's 4-bit elements in order, two a byte, the even one in the low nibble → uint8 codes 0..15 of ``shape``."""
    return unpack_nibbles(data).flatten()[: math.prod(shape)].view(shape)


def unpack_int4(data: torch.Tensor, shape: tuple[int, ...], signed: bool) -> torch.Tensor:
    """ONNX's 4-bit integers as int8 of ``shape``."""
    codes = unpack_flat(data, shape)
    return signed_nibbles(codes) if signed else codes.to(torch.int8)


def unpack_e2m1(data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """ONNX's E2M1 elements as float32 of ``shape``."""
    return e2m1_decode(unpack_flat(data, shape))


def signed_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 as int8 -8..7, two's complement."""
    return ((codes ^ 8).to(torch.int8)) - 8


def in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """``x`` [..., K] as float32 [..., K/G, G]."""
    if x.shape[-1] % block:
        raise ValueError(f"a block of {block} does not divide the last dimension of {tuple(x.shape)}")
    return x.to(torch.float32).unflatten(-1, (-1, block))


# --- two levels of scales: E4M3 a block, float32 a tensor ---------------------------------------


def two_level_scale(amax: torch.Tensor) -> torch.Tensor:
    """The float32 scale of a tensor with maximum ``amax``: the largest block gets the largest E4M3 scale."""
    return amax.to(torch.float32) / (E2M1_MAX * E4M3_MAX)


def fake_quant_two_level(
    x: torch.Tensor, global_scale: torch.Tensor | float, *, block: int = 16, scale_floor: float = 0.0
) -> torch.Tensor:
    """What dynamic quantization to E2M1 in blocks keeps of ``x`` [..., K], as float32.

    Args:
        x: activations or weights; K is a multiple of ``block``.
        global_scale: the tensor's static scale (``input_scale`` or ``weight_scale_2`` of a checkpoint).
        block: values that share a scale.
        scale_floor: block scales below it count as one (ModelOpt's kernel does so); by default a
            block whose scale rounds to zero becomes zero.
    """
    blocks = in_blocks(x, block)
    scale = e4m3_round_fast(blocks.abs().amax(-1, keepdim=True) / (E2M1_MAX * global_scale)) * global_scale
    if scale_floor:
        scale = torch.where(scale >= scale_floor, scale, torch.ones_like(scale))
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (e2m1_round(blocks / safe) * scale).flatten(-2)


def quantize_two_level(
    weight_NK: torch.Tensor, global_scale: torch.Tensor, *, block: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in E2M1: (packed uint8 [N, K/2], block scales float8_e4m3fn [N, K/G]).

    The same rules as ModelOpt's exporter: an all-zero block gets scale 1, other scales are at least 2^-9.
    """
    blocks = in_blocks(weight_NK, block)
    scale = blocks.abs().amax(-1) / (E2M1_MAX * global_scale)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    scale_fp8 = scale.clamp(E4M3_TINY, E4M3_MAX).to(torch.float8_e4m3fn)
    values = blocks / (scale_fp8.to(torch.float32) * global_scale).unsqueeze(-1)
    return pack_nibbles(e2m1_encode(values.flatten(-2))), scale_fp8


def dequantize_two_level(
    packed: torch.Tensor, block_scales: torch.Tensor, global_scale: torch.Tensor, *, block: int = 16
) -> torch.Tensor:
    """Packed uint8 [N, K/2] and scales [N, K/G] back to float32 [N, K]."""
    values = e2m1_decode(unpack_nibbles(packed)).unflatten(-1, (-1, block))
    return (values * (block_scales.to(torch.float32) * global_scale).unsqueeze(-1)).flatten(-2)


# --- MX -----------------------------------------------------------------------------------------


def mx_block_exponents(x: torch.Tensor, *, element_emax: int, block: int = 32) -> torch.Tensor:
    """Shared E8M0 exponents of an MX format, int32 [..., K/G]: floor(log2(amax)) - emax, within ±127."""
    amax = in_blocks(x, block).abs().amax(-1)
    # frexp is exact where log2 is not: amax = m * 2^e with m in [1/2, 1)
    _, exponent = torch.frexp(amax)
    floor_log2 = torch.where(amax > 0, exponent - 1, torch.full_like(exponent, -126))
    return (floor_log2 - element_emax).clamp(-127, 127)


def _power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents).unsqueeze(-1)


def fake_quant_mxfp4(x: torch.Tensor, *, block: int = 32) -> torch.Tensor:
    """What MXFP4 (E2M1 elements, a power-of-two scale a block) keeps of ``x`` [..., K], as float32."""
    scale = _power_of_two(mx_block_exponents(x, element_emax=2, block=block))
    return (e2m1_round(in_blocks(x, block) / scale) * scale).flatten(-2)


def fake_quant_mxfp8(x: torch.Tensor, *, block: int = 32) -> torch.Tensor:
    """What MXFP8 (E4M3 elements, a power-of-two scale a block) keeps of ``x`` [..., K], as float32."""
    scale = _power_of_two(mx_block_exponents(x, element_emax=8, block=block))
    return (e4m3_round_fast(in_blocks(x, block) / scale) * scale).flatten(-2)
