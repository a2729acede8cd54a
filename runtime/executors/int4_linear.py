"""INT4 linears on the host op library: the stored integers and scales, one order of summation for every row count.

With bfloat16 units the library multiplies bfloat16 activations with the integers, which bfloat16 holds exactly;
otherwise it widens the activations to float32. Sums, scales and bias are float32, and a result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plugins.host import int4
from plugins.host.library import HostLibrary
from runtime.executors.host_kernels import DTYPES
from runtime.executors.onnx_graph import Constant
from runtime.executors.weights import LinearSource
from trtforge.native import ops


def takes(sources: Sequence[LinearSource]) -> bool:
    """Whether the kernel takes these linears: signed integers in groups of whole words."""
    return all(
        s.group > 0
        and s.group % int4.WORD == 0
        and s.shape[1] % s.group == 0
        and isinstance(s.weight, Constant)
        and s.weight.dtype == "INT4"
        for s in sources
    )


class HostInt4:
    """``trtforge_int4_linear`` of the host op library."""

    name = "host_int4"
    executed = "INT4 weights, sums in float32"
    row_invariant = True
    quantizes_input = False

    def __init__(self, library: HostLibrary, sources: Sequence[LinearSource], bias: torch.Tensor | None) -> None:
        self._library, self._call = library, library.raw_op(ops.INT4_LINEAR)
        nibbles = torch.cat([_nibbles(source) for source in sources])
        scales = torch.cat([s.block_scales.float() for s in sources if s.block_scales is not None])
        self._weights, self._scales = int4.pack_weights(nibbles), int4.pack_scales(scales)
        self._bias = None if bias is None else bias.float().contiguous()
        self._outputs, self._inputs, self._group = len(nibbles), sources[0].shape[1], sources[0].group
        self._fixed = (
            self._weights.data_ptr(),
            self._scales.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
        )
        self.nbytes = 4 * (self._weights.numel() + self._scales.numel())

    def rows(self, tokens: int) -> int:
        return tokens

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        y = torch.empty(tokens, self._outputs, dtype=x.dtype)
        dtype = DTYPES[x.dtype]
        status = self._call(
            x.data_ptr(), *self._fixed, y.data_ptr(), x.stride(0), self._outputs, tokens, self._outputs, self._inputs,
            self._group, dtype, dtype,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"int4_linear: {self._library.last_error()} (status {status})")
        return y

    def weights(self) -> torch.Tensor:
        """float32 [N, K]: what the packed words and scales stand for."""
        integers = int4.unpack_weights(self._weights, self._outputs).view(self._outputs, -1, self._group)
        scales = int4.unpack_scales(self._scales, self._outputs)
        return (integers * scales[..., None]).view(self._outputs, self._inputs)


def _nibbles(source: LinearSource) -> torch.Tensor:
    """uint8 [N, K/2] as stored."""
    assert isinstance(source.weight, Constant)
    return source.weight.data.view(source.shape[0], source.shape[1] // 2)
