"""What a quantized KV cache gives back of keys and values, in torch; which caches there are is in ``formats.yaml``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trtforge.formats.elements import fake_quant_e4m3
from trtforge.formats.table import KvMode

#: element type of the pool → (x, scale) → what it holds of x, in float32
_ROUNDED: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {"float8_e4m3fn": fake_quant_e4m3}


def rounded(mode: KvMode) -> Callable[[torch.Tensor, float], torch.Tensor]:
    """How a mode that the chain carries rounds keys and values under their scale."""
    return _ROUNDED[str(mode.dtype)]
