"""What kind of drafter a folder's tensors are, by their headers; for preflight and the converters."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trtforge.safetensors_header import TensorInfo

#: what EAGLE-3 alone has: vocabulary maps, and the name of its only layer
_MAPS, _LAYER = ("d2t", "t2d"), "midlayer."


def is_eagle_3(headers: Mapping[str, TensorInfo]) -> bool:
    """Whether a drafter reads hidden states of three layers (``fc`` [D, 3 D]) or has EAGLE-3's own tensors."""
    fc = headers.get("fc.weight")
    wide = fc is not None and len(fc.shape) == 2 and fc.shape[1] == 3 * fc.shape[0]
    return wide or any(name in _MAPS or name.startswith(_LAYER) for name in headers)


#: a residual block of a Medusa head, in the two ways in which heads are stored
_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.(0\.)?linear\.(weight|bias)")


def drafter_method(headers: Mapping[str, TensorInfo]) -> str | None:
    """The speculation method that a drafter's tensors are for: eagle (-1 or -2), eagle3 or medusa; None when unknown.

    EAGLE's ``fc`` joins an embedding and one hidden state ([D, 2 D]), EAGLE-3's three hidden states ([D, 3 D]).
    """
    if is_eagle_3(headers):
        return "eagle3"
    fc = headers.get("fc.weight")
    if fc is not None and len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0]:
        return "eagle"
    return "medusa" if any(_MEDUSA.fullmatch(name) for name in headers) else None
