"""Everything of a step that is not a linear: norms, rotary embedding, activations, attention.

Policy: one interface, two implementations. :class:`TorchKernels` is the interface, runs anywhere and is the fallback;
:mod:`runtime.executors.host_kernels` overrides it with the host library. Operands may be columns of a
packed matrix: such an argument is a :class:`Columns`, a matrix [T, W] and the first column that
counts, so that no view has to be made in the step's inner loop.

Every function writes rows ``0 … tokens-1`` only; matrices may be longer (linears run on padded rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from runtime.executors.torch_attention import AttentionParams, paged_attention
from trtforge.formats.elements import fake_quant_e4m3_rows, fake_quant_two_level, to_e4m3, to_int8


class Columns(NamedTuple):
    """Columns ``first … first+width-1`` of ``matrix`` [rows, W]."""

    matrix: torch.Tensor
    first: int
    width: int

    def view(self, tokens: int) -> torch.Tensor:
        """The [tokens, width] view (not contiguous)."""
        return self.matrix[:tokens, self.first : self.first + self.width]


class StepIndex(NamedTuple):
    """The index arrays of a step as tensors on the device: int32, contiguous."""

    query_start: torch.Tensor
    sequence_lengths: torch.Tensor
    block_table: torch.Tensor
    tree_mask: torch.Tensor | None


class TorchKernels:
    """Elementwise and attention kernels of the lowered program, in torch operations: any device, any dtype."""

    name = "torch"

    def embedding(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, tokens: int) -> None:
        """out[t] = table[ids[t]]."""
        out[:tokens] = table.index_select(0, ids)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor, tokens: int) -> None:
        """out = x / rms(x) * weight, rows [tokens, D]."""
        out[:tokens] = F.rms_norm(x[:tokens].float(), (x.shape[1],), None, epsilon).to(out.dtype) * weight

    def add_rms_norm(
        self,
        residual: torch.Tensor,
        x: Columns,
        weight: torch.Tensor,
        epsilon: float,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        """residual += x in place, then out = rms_norm(residual)."""
        residual[:tokens] += x.view(tokens)
        self.rms_norm(residual, weight, epsilon, out, tokens)

    def head_norm(self, x: Columns, weight: torch.Tensor, epsilon: float, tokens: int) -> None:
        """Each head of ``x`` (as wide as ``weight`` [E]) divided by its rms, times ``weight``, in place."""
        heads = x.view(tokens).unflatten(1, (-1, weight.numel()))
        normed = F.rms_norm(heads.float(), (weight.numel(),), None, epsilon).to(heads.dtype)
        heads.copy_(normed * weight)

    def add(self, residual: torch.Tensor, x: Columns, tokens: int) -> None:
        residual[:tokens] += x.view(tokens)

    def rope(self, q: Columns, k: Columns, head_size: int, cos: torch.Tensor, sin: torch.Tensor, tokens: int) -> None:
        """Rotate the first R values of each head of queries and keys in place, first half against second half.

        cos and sin are float32 [T, R/2], contiguous; R is at most E, and even.
        """
        c, s = cos[:tokens, None], sin[:tokens, None]
        for x in (q, k):
            view = x.view(tokens).unflatten(1, (-1, head_size))[..., : 2 * cos.shape[1]]
            a, b = view.float().chunk(2, dim=-1)
            view.copy_(torch.cat((a * c - b * s, b * c + a * s), dim=-1))

    def silu_mul(self, gate: Columns, up: Columns, out: torch.Tensor, tokens: int) -> None:
        """out = silu(gate) * up, [tokens, width]."""
        torch.mul(F.silu(gate.view(tokens)), up.view(tokens), out=out[:tokens])

    def paged_attention(
        self,
        q: Columns,
        k: Columns,
        v: Columns,
        pool: torch.Tensor,
        index: StepIndex,
        params: AttentionParams,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        """PagedAttention v1 on packed rows; writes k and v into ``pool`` and the result into ``out`` [T, H*E]."""
        heads, kv_heads, size = params.num_heads, params.num_kv_heads, params.head_size
        result = paged_attention(
            q.view(tokens).reshape(tokens, heads, size),
            k.view(tokens).reshape(tokens, kv_heads, size),
            v.view(tokens).reshape(tokens, kv_heads, size),
            pool,
            index.query_start,
            index.sequence_lengths,
            index.block_table,
            params,
            index.tree_mask,
        )
        out[:tokens] = result.reshape(tokens, -1)

    def fp8_fake_quant(self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int) -> None:
        """out = e4m3(x / scale) * out_scale, contiguous rows; ``out`` may be ``x``."""
        out[:tokens] = to_e4m3(x[:tokens], scale).float() * out_scale

    def nvfp4_fake_quant(self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int) -> None:
        """out = nvfp4(x; scale) * out_scale in blocks of 16; ``out`` may be ``x``."""
        out[:tokens] = fake_quant_two_level(x[:tokens], scale or 1.0) * out_scale

    def fp8_row_fake_quant(
        self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int
    ) -> None:
        """out = e4m3(x / s) * s * out_scale, s of each row its largest magnitude over 448; ``scale`` is not read."""
        out[:tokens] = fake_quant_e4m3_rows(x[:tokens]) * out_scale

    def int8_fake_quant(self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int) -> None:
        """out = int8(x / scale) * out_scale; ``out`` may be ``x``."""
        out[:tokens] = to_int8(x[:tokens], scale).float() * out_scale

    def copy_blocks(self, pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks of ``pool`` [N, 2, K, S, E] in order."""
        raw = pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool
        for source, target in pairs:
            raw[target].copy_(raw[source])
