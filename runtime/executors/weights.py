"""Weights of linears as they are stored, and widened for packing.

A weight [N, K] is codes times a scale, which stays outside the product; what the codes are, and whether float16 and
bfloat16 hold them exactly, is the format's (:class:`trtforge.formats.base.Format`). Dense weights have no outer scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.executors.onnx_graph import Constant
from trtforge.formats import format_of_kind
from trtforge.formats.base import Format, StoredWeight


@dataclass
class LinearSource:
    """One linear of the graph: y = x Wᵀ + bias, with W [N, K] = codes · scale.

    Attributes:
        name: the module path.
        format: ``bfloat16``, ``float16``, ``float32``, or a format's :attr:`~trtforge.formats.base.Format.kind`.
        weight: the stored initializer (or the evaluated dense weight).
        scale: the factor outside the product: one (1 for dense weights), or one a row of the weight.
        block_scales: [N, K/group], of the formats with blocks.
    """

    name: str
    shape: tuple[int, int]
    format: str
    weight: Constant | torch.Tensor
    scale: float | torch.Tensor = 1.0
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
        method, (rows, columns) = self.method, self.shape
        if method is None or method.row.weight is None:
            return rows * columns * (4 if self.format == "float32" else 2)
        scales = 0 if self.block_scales is None else self.block_scales.numel() * method.scale_bytes
        scales += 4 * self.scale.numel() if isinstance(self.scale, torch.Tensor) else 0
        return rows * columns * method.row.weight.bits // 8 + scales

    @property
    def method(self) -> Format | None:
        """The format of a quantized weight; None for a dense one."""
        return format_of_kind(self.format)

    @property
    def exact_codes(self) -> bool:
        """Whether float16 and bfloat16 hold the codes of a quantized weight exactly."""
        return self.method is not None and self.method.exact_codes

    def write_codes(self, out: torch.Tensor) -> None:
        """Fill float32 [N, K] with what the weights are before :attr:`scale`."""
        if self.method is not None:
            self.method.write_codes(self.weight, StoredWeight(self.scale, self.block_scales, self.group), out)
            return
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
