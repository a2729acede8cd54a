"""Activation quantization as the graph's operators define it, in torch.

FP8 is per tensor: ``saturate_e4m3(x / scale)``. NVFP4 is dynamic over blocks of 16: the block's scale
is ``e4m3(amax / 6 / global)`` times ``global`` and values are rounded to E2M1, ties to even
(TensorRT's DynamicQuantize; ModelOpt's ``dynamic_block_quantize``).
"""

from __future__ import annotations

import math

import torch

from trtforge.formats import elements
from trtforge.formats.elements import E2M1_MAX, E4M3_MAX, e2m1_decode, e2m1_round, signed_nibbles

NVFP4_BLOCK = 16


def to_e4m3(x: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
    """``x / scale`` saturated and rounded to float8_e4m3fn."""
    return (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def fp8_fake_quant(x: torch.Tensor, scale: float, out_scale: float) -> torch.Tensor:
    """E4M3 codes of ``x / scale`` times ``out_scale``, in the dtype of ``x``."""
    return (to_e4m3(x, scale).float() * out_scale).to(x.dtype)


def nvfp4_fake_quant(x: torch.Tensor, global_scale: float, out_scale: float = 1.0) -> torch.Tensor:
    """Quantize and de-quantize ``x`` [..., K] in blocks of 16 along its last axis, times ``out_scale``."""
    blocks = x.float().reshape(-1, NVFP4_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    unit = global_scale or 1.0
    scale = (amax / E2M1_MAX / unit).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).float() * unit
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (e2m1_round(blocks / scale) * (scale * out_scale)).reshape(x.shape).to(x.dtype)


def unpack_nibbles(data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """uint8 bytes with two codes each (low nibble first) → uint8 codes 0…15 of ``shape``."""
    return elements.unpack_nibbles(data).flatten()[: math.prod(shape)].view(shape)


def unpack_int4(data: torch.Tensor, shape: tuple[int, ...], signed: bool) -> torch.Tensor:
    """4-bit integers as int8 of ``shape``."""
    codes = unpack_nibbles(data, shape)
    return signed_nibbles(codes) if signed else codes.to(torch.int8)


def unpack_e2m1(data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """E2M1 codes as float32 of ``shape``."""
    return e2m1_decode(unpack_nibbles(data, shape))
