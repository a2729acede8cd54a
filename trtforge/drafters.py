"""What tells an EAGLE-3 drafter from one of EAGLE-1 and -2, by its headers; for preflight and the converters."""

from __future__ import annotations

from collections.abc import Mapping

from trtforge.safetensors_header import TensorInfo

#: what EAGLE-3 alone has: vocabulary maps, and the name of its only layer
_MAPS, _LAYER = ("d2t", "t2d"), "midlayer."


def is_eagle_3(headers: Mapping[str, TensorInfo]) -> bool:
    """Whether a drafter reads hidden states of three layers (``fc`` [D, 3 D]) or has EAGLE-3's own tensors."""
    fc = headers.get("fc.weight")
    wide = fc is not None and len(fc.shape) == 2 and fc.shape[1] == 3 * fc.shape[0]
    return wide or any(name in _MAPS or name.startswith(_LAYER) for name in headers)
