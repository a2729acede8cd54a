"""Weights of linears as they are stored, and widened for packing.

A weight [N, K] is codes times a scale: for FP8 and NVFP4 the codes are exact in float16 and bfloat16 and the
per-tensor scale stays outside the product; dense weights and INT4 have no outer scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.executors.fake_quant import unpack_e2m1, unpack_int4
from runtime.executors.onnx_graph import Constant


@dataclass
class LinearSource:
    """One linear of the graph: y = x Wᵀ + bias, with W [N, K] = codes · scale.

    Attributes:
        name: the module path.
        format: ``bfloat16``, ``float16``, ``float32``, ``fp8``, ``nvfp4`` or ``int4``.
        weight: the stored initializer (or the evaluated dense weight).
        scale: the per-tensor factor outside the product (1 for dense weights and INT4).
        block_scales: [N, K/group] for int4, float32 [N, K/16] E4M3 values for nvfp4.
    """

    name: str
    shape: tuple[int, int]
    format: str
    weight: Constant | torch.Tensor
    scale: float = 1.0
    block_scales: torch.Tensor | None = None
    group: int = 0
    bias: torch.Tensor | None = None
    transposed: bool = False
    #: evaluates a weight that is no stored tensor anew, after :meth:`release`
    again: Callable[[], torch.Tensor] | None = None

    def release(self) -> None:
        """Let go of an evaluated weight: what is packed is not read again, but for a check."""
        if self.again is not None:
            self.weight = torch.empty(0)

    def restore(self) -> None:
        """The opposite of :meth:`release`."""
        if self.again is not None:
            self.weight = self.again()

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weight in the engine's files, scales included."""
        bits = {"fp8": 8, "nvfp4": 4, "int4": 4, "float32": 32}.get(self.format, 16)
        scales = 0 if self.block_scales is None else self.block_scales.numel() * (1 if self.format == "nvfp4" else 2)
        return self.shape[0] * self.shape[1] * bits // 8 + scales

    def integers(self) -> torch.Tensor:
        """INT4 weights as int8 [N, K]."""
        assert isinstance(self.weight, Constant)
        return unpack_int4(self.weight.data, self.shape, signed=self.weight.dtype == "INT4")

    def write_codes(self, out: torch.Tensor) -> None:
        """Fill float32 [N, K] with what the weights are before :attr:`scale`; exact in float16 for fp8 and nvfp4."""
        if self.format == "int4":
            assert self.block_scales is not None
            blocks = out.view(self.shape[0], -1, self.group)
            blocks.copy_(self.integers().view(blocks.shape)).mul_(self.block_scales.float()[..., None])
        elif self.format == "nvfp4":
            assert isinstance(self.weight, Constant) and self.block_scales is not None
            blocks = out.view(self.shape[0], -1, self.group)
            blocks.copy_(unpack_e2m1(self.weight.data, self.shape).view(blocks.shape))
            blocks.mul_(self.block_scales.float()[..., None])
        else:
            data = self.weight.data if isinstance(self.weight, Constant) else self.weight
            out.copy_(data.T if self.transposed else data)

    def largest(self) -> float:
        """The largest magnitude among dense weights, without widening them."""
        data = self.weight.data if isinstance(self.weight, Constant) else self.weight
        if data.numel() == 0:
            return 0.0
        low, high = torch.aminmax(data)
        return max(-float(low), float(high))


class Scratch:
    """Memory for widening weights, grown once and used for every linear: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def codes(self, sources: Sequence[LinearSource]) -> torch.Tensor:
        """float32 [N, K] codes of all sources, one after the other; valid until the next call."""
        rows, width = sum(s.shape[0] for s in sources), sources[0].shape[1]
        if self._memory.numel() < rows * width:
            self._memory = torch.empty(rows * width)
        out = self._memory[: rows * width].view(rows, width)
        first = 0
        for source in sources:
            source.write_codes(out[first : first + source.shape[0]])
            first += source.shape[0]
        return out
