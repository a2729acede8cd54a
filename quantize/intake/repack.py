"""Packed weights of other tools as integers, a band of rows at a time, and what they become here.

All of it is exact: integers move from one packing into another, and a product is kept only where the target type holds
it. What is not exact raises :class:`Inexact`, for the caller to refuse by name.

Sources of the packings: compressed-tensors' ``pack_to_int32`` (the first column lowest, values plus 8), AutoAWQ's
``WQLinear_GEMM`` (eight columns in the order 0 2 4 6 1 3 5 7), GPTQ's ``pack_block`` (eight rows, the first lowest).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trtforge.ground.e4m3 import decode

#: rows of a linear that are unpacked at a time; even, and a multiple of what any packing joins
BAND = 256
#: where AutoAWQ puts the eight columns of an element, lowest bits first
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)
Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int16]


class Inexact(Exception):
    """Values that the target cannot hold; the message says which and how many."""


def nibbles(words: Array, axis: int) -> npt.NDArray[np.uint8]:
    """int32 words as eight 4-bit values each along ``axis``, the lowest first."""
    parts = [((words.view(np.uint32) >> np.uint32(4 * place)) & 0xF).astype(np.uint8) for place in range(8)]
    stacked = np.stack(parts, axis=axis + 1)
    shape = list(words.shape)
    shape[axis] *= 8
    return stacked.reshape(shape)


def awq_nibbles(words: Array) -> npt.NDArray[np.uint8]:
    """AutoAWQ's int32 words [A, B/8] as [A, B]."""
    found = nibbles(words, 1).reshape(words.shape[0], -1, 8)
    result = np.empty_like(found)
    result[:, :, list(AWQ_ORDER)] = found
    return result.reshape(words.shape[0], -1)


def packed_rows(weight: Array) -> Iterator[Codes]:
    """compressed-tensors' [N, K/8] as bands of signed values [n, K]."""
    for start in range(0, weight.shape[0], BAND):
        yield nibbles(np.asarray(weight[start : start + BAND]), 1).astype(np.int16) - 8


def awq_rows(weight: Array, zeros: Array, group: int) -> Iterator[Codes]:
    """AutoAWQ's [K, N/8] less its zero points [K/G, N/8], as bands [n, K]."""
    for start in range(0, weight.shape[1], BAND // 8):
        part = slice(start, start + BAND // 8)
        values = awq_nibbles(np.ascontiguousarray(weight[:, part])).astype(np.int16)
        points = awq_nibbles(np.ascontiguousarray(zeros[:, part])).astype(np.int16)
        yield np.ascontiguousarray((values - np.repeat(points, group, axis=0)).T)


def gptq_rows(weight: Array, zeros: Array, group: int, *, less_one: bool) -> Iterator[Codes]:
    """GPTQ's [K/8, N] less its zero points [K/G, N/8], as bands [n, K]; ``less_one``: they are stored less one."""
    for start in range(0, weight.shape[1], BAND):
        values = nibbles(np.ascontiguousarray(weight[:, start : start + BAND]), 0).astype(np.int16)
        words = np.ascontiguousarray(zeros[:, start // 8 : (start + BAND) // 8])
        points = nibbles(words, 1).astype(np.int16) + less_one
        yield np.ascontiguousarray((values - np.repeat(points, group, axis=0)).T)


def int4_bytes(bands: Iterator[Codes]) -> Iterator[Bytes]:
    """Bands [n, K] as this package's bytes [n/2, K]: the even row in the low nibble, two's complement.

    Raises:
        Inexact: a value beyond -8 … 7, which a zero point off the middle makes.
    """
    for band in bands:
        outside = int(np.count_nonzero((band < -8) | (band > 7)))
        if outside:
            raise Inexact(f"{outside} weights of {band.size} lie beyond -8 … 7 once the zero point is taken off")
        low, high = band[0::2].astype(np.uint8) & 0xF, band[1::2].astype(np.uint8) & 0xF
        yield (low | (high << 4)).astype(np.uint8)


def e2m1_rows(weight: Bytes) -> Iterator[npt.NDArray[np.float64]]:
    """Bytes [N, K/2] of two E2M1 codes (the even column low) as bands of values [n, K]."""
    for start in range(0, weight.shape[0], BAND):
        part = np.asarray(weight[start : start + BAND])
        codes = np.stack([part & 0xF, part >> 4], axis=2).reshape(part.shape[0], -1)
        yield _E2M1[codes]


def e4m3_rows(weight: Bytes) -> Iterator[npt.NDArray[np.float64]]:
    """Bytes [N, K] of E4M3 as bands of values."""
    for start in range(0, weight.shape[0], BAND):
        yield decode(np.asarray(weight[start : start + BAND])).astype(np.float64)


def scaled(
    bands: Iterator[npt.NDArray[np.float64]], scales: npt.NDArray[np.float64], block: tuple[int, int]
) -> Iterator[npt.NDArray[np.float32]]:
    """Bands times the scales of their blocks, as float32.

    Raises:
        Inexact: a product that bfloat16 does not hold.
    """
    start = 0
    for band in bands:
        rows = np.arange(start, start + band.shape[0]) // block[0]
        wide = np.repeat(scales[rows], block[1], axis=1)[:, : band.shape[1]]
        product = band * wide
        single = product.astype(np.float32)
        lost = int(np.count_nonzero((single.view(np.uint32) & np.uint32(0xFFFF)) | (single != product)))
        if lost:
            raise Inexact(
                f"{lost} weights of {band.size} need more digits than bfloat16 has: their scales are no powers of two"
            )
        start += band.shape[0]
        yield single


def powers_of_two(codes: Bytes) -> npt.NDArray[np.float64]:
    """E8M0 bytes as numbers."""
    return 2.0 ** (codes.astype(np.float64) - 127.0)
