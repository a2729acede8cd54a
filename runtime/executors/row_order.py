"""Which row counts the libraries' kernels sum in one common order, measured on the machine at hand.

A request's greedy output must not depend on its neighbours, so a row of a linear's result must be the same bits
however many rows are computed with it. No library promises that; most of their kernels behave so for most row
counts. What is measured here tells by how much a kernel has to pad the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

#: FBGEMM works through the rows in panels of this many
FBGEMM_PANEL = 120
#: rows that a buffer has beyond max_num_tokens, for kernels that pad
ROW_PADDING = 16

#: row counts that stand for all when oneDNN's order of summation is measured
_ONEDNN_PROBES = (*range(1, 17), 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 160, 192, 256, 384)
#: multiply-adds that one probe may cost
_ONEDNN_PROBE_WORK = 1 << 32


def least_rows(product: Callable[[int], torch.Tensor], counts: Sequence[int]) -> int | None:
    """The least of ascending ``counts`` from which the rows of ``product`` are those of the largest count.

    None when that would pad a step by more than :data:`ROW_PADDING`.
    """
    reference = product(counts[-1])
    differing = [r for r in counts[:-1] if not torch.equal(product(r), reference[:r])]
    safe = next(r for r in counts if not differing or r > differing[-1])
    return safe if safe <= ROW_PADDING else None


@functools.cache
def onednn_safe_rows(n: int, k: int, threads: int) -> int | None:
    """The least row count from which a row of a bfloat16 product is the same bits whatever the count.

    None: there is none up to the rows that a step may be padded by. Measured once per shape [N, K] and number of
    threads, because oneDNN picks its kernel by both. The sums are made to cancel almost entirely, so that their last
    bits, which the result's bfloat16 would hide, are all that is left of them.
    """
    generator = torch.Generator().manual_seed(1)
    counts = [r for r in _ONEDNN_PROBES if r <= ROW_PADDING or r * n * k <= _ONEDNN_PROBE_WORK]
    half = k // 2
    left = torch.randn(min(n, 64), half, generator=generator).bfloat16()
    weight = torch.cat((left, left, torch.zeros(len(left), k - 2 * half)), dim=1).bfloat16()
    weight = weight.repeat(-(-n // len(left)), 1)[:n].contiguous()
    ahead = torch.randn(counts[-1], half, generator=generator).bfloat16()
    x = torch.cat((ahead, -ahead, torch.zeros(counts[-1], k - 2 * half)), dim=1).bfloat16()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def product(rows: int) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x[:rows], packed, None, "none", [], "")

    return least_rows(product, counts)


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
