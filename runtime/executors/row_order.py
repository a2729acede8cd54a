"""Which row counts the libraries' kernels sum in one common order, measured on the machine at hand.

A request's greedy output must not depend on its neighbours, so a row of a linear's result must be the same bits
however many rows are computed with it. No library promises that; most of their kernels behave so for most row
counts. What is measured here tells by how much a kernel has to pad the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

#: FBGEMM works through the rows in panels of this many
FBGEMM_PANEL = 120
#: rows that a buffer has beyond max_num_tokens, for kernels that pad
ROW_PADDING = 16

#: row counts that stand for all when oneDNN's order of summation is measured
_ONEDNN_PROBES = (*range(1, 34), 40, 48, 63, 64, 65, 96, 127, 128, 160, 192, 256, 384)
#: most rows that are computed at once where no larger product sums as they do: a block of rows of the units for it
_ONEDNN_BAND = 32
#: multiply-adds that one probe may cost
_ONEDNN_PROBE_WORK = 1 << 32


@dataclass(frozen=True)
class RowOrder:
    """Row counts whose products sum in one order.

    Attributes:
        least: rows; fewer have to be padded.
        most: rows; more have to be computed in pieces. None: there is no end.
    """

    least: int
    most: int | None = None


def least_rows(product: Callable[[int], torch.Tensor], counts: Sequence[int]) -> int | None:
    """The least of ascending ``counts`` from which the rows of ``product`` are those of the largest count.

    None when that would pad a step by more than :data:`ROW_PADDING`.
    """
    reference = product(counts[-1])
    differing = [r for r in counts[:-1] if not torch.equal(product(r), reference[:r])]
    safe = next(r for r in counts if not differing or r > differing[-1])
    return safe if safe <= ROW_PADDING else None


def row_order(product: Callable[[int], torch.Tensor], counts: Sequence[int], band: int) -> RowOrder | None:
    """The order that all counts have from a small one on, else that of those up to ``band``; None: neither."""
    least = least_rows(product, counts)
    if least is not None:
        return RowOrder(least)
    least = least_rows(product, [count for count in counts if count <= band])
    return None if least is None else RowOrder(least, band)


@functools.cache
def onednn_row_order(n: int, k: int, threads: int) -> RowOrder | None:
    """Which row counts of a bfloat16 product give a row the same bits.

    None: no common order that a step could be padded or cut to. Measured once per shape [N, K] and number of threads,
    because oneDNN picks its kernel by both: AVX-512 units sum alike from two rows on, AMX up to 32 rows and otherwise
    beyond. The sums are made to cancel almost entirely, in another order than they grew, so that their last bits, which
    the result's bfloat16 would hide, are all that is left of them.
    """
    generator = torch.Generator().manual_seed(1)
    counts = [r for r in _ONEDNN_PROBES if r <= ROW_PADDING or r * n * k <= _ONEDNN_PROBE_WORK]
    x, weight = cancelling(counts[-1], min(n, 64), k, generator)
    weight = weight.repeat(-(-n // len(weight)), 1)[:n].contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def product(rows: int) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x[:rows], packed, None, "none", [], "")

    return row_order(product, counts, _ONEDNN_BAND)


def cancelling(rows: int, n: int, k: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 [rows, K] and [N, K] whose product is nothing but what its sums were rounded by."""
    half, odd = k // 2, k % 2
    other = torch.randperm(half, generator=generator)
    left, ahead = (torch.randn(size, half, generator=generator).bfloat16() for size in (n, rows))
    x = torch.cat((ahead, -ahead[:, other], ahead.new_zeros(rows, odd)), dim=1)
    return x, torch.cat((left, left[:, other], left.new_zeros(n, odd)), dim=1)


@functools.cache
def fbgemm_safe_rows() -> tuple[int, ...]:
    """``table[r]`` for r in 0…120: the smallest row count ≥ r whose tiles all sum in the common order.

    Measured rather than known: FBGEMM splits a panel of up to 120 rows by a table of its own, per
    instruction set. A row count is safe when each of its rows equals, bit for bit, what the same row
    gives in a product of six rows.
    """
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(32, 512, generator=generator)
    x = torch.randn(FBGEMM_PANEL, 512, generator=generator)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    product = torch.ops.quantized.linear_dynamic_fp16
    reference = torch.cat([product(x[i : i + 6], packed) for i in range(0, FBGEMM_PANEL, 6)])
    safe = [r for r in range(1, FBGEMM_PANEL + 1) if torch.equal(product(x[:r], packed), reference[:r])]
    table, upper = [0] * (FBGEMM_PANEL + 1), FBGEMM_PANEL
    for r in range(FBGEMM_PANEL, 0, -1):
        upper = r if r in set(safe) else upper
        table[r] = upper
    return tuple(table)


@functools.cache
def fbgemm_rows(tokens: int) -> int:
    """The padded row count for ``tokens`` rows (see :func:`fbgemm_safe_rows`)."""
    full, rest = divmod(tokens, FBGEMM_PANEL)
    return full * FBGEMM_PANEL + fbgemm_safe_rows()[rest]
