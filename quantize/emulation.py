"""ModelOpt's block quantization, which needs a GPU, done by our own emulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from trtforge.formats.elements import fake_quant_mxfp4, fake_quant_mxfp8, fake_quant_two_level, two_level_scale

#: block scales under this are taken for one by ModelOpt's fake-quantization kernel (and by nothing else)
MODELOPT_SCALE_FLOOR = 1e-5


def dynamic_block_quantize(
    inputs: torch.Tensor,
    block_size: int,
    amax: torch.Tensor | None,
    num_bits: int,
    exponent_bits: int,
    scale_num_bits: int,
    scale_exponent_bits: int,
) -> torch.Tensor:
    """ModelOpt's ``dynamic_block_quantize_op`` on any device, for NVFP4, MXFP4 and MXFP8.

    Raises:
        ValueError: for any other pair of element and scale formats.
    """
    element, scale = (num_bits, exponent_bits), (scale_num_bits, scale_exponent_bits)
    if element == (4, 2) and scale == (8, 4) and amax is not None:
        global_scale = two_level_scale(amax.amax())
        global_scale = torch.where(global_scale > 0, global_scale, torch.full_like(global_scale, 1e-12))
        kept = fake_quant_two_level(inputs, global_scale, block=block_size, scale_floor=MODELOPT_SCALE_FLOOR)
    elif element == (4, 2) and scale == (9, 8):
        kept = fake_quant_mxfp4(inputs, block=block_size)
    elif element == (8, 4) and scale == (9, 8):
        kept = fake_quant_mxfp8(inputs, block=block_size)
    else:
        raise ValueError(f"no emulation for elements {element} with scales {scale} (bits, exponent bits)")
    return kept.to(inputs.dtype)


@contextlib.contextmanager
def emulated_block_quantization() -> Iterator[bool]:
    """ModelOpt's block quantization by :func:`dynamic_block_quantize` inside the block, where no GPU is present.

    Yields whether the emulation is in place (``False`` on a machine with a GPU: ModelOpt's kernel is used).
    """
    if torch.cuda.is_available():
        yield False
        return
    import modelopt.torch.quantization.tensor_quant as tensor_quant

    module: Any = tensor_quant
    original = module.dynamic_block_quantize_op
    module.dynamic_block_quantize_op = dynamic_block_quantize
    try:
        yield True
    finally:
        module.dynamic_block_quantize_op = original
