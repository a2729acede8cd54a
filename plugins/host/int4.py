"""INT4 weights and their scales in the order in which ``trtforge_int4_linear`` reads them.

Panels of 16 outputs; in a panel, for each 8 inputs, 16 words of 32 bits, one an output. A word's lower half holds the
nibbles of inputs 0, 2, 4, 6, its upper half those of 1, 3, 5, 7. Outputs past N are zeros. Nothing is rounded: the
nibbles are the stored ones, the scales are widened to float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: outputs of a panel
PANEL = 16
#: inputs of a word; groups are whole words
WORD = 8


def pack_weights(nibbles: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K/2] (ONNX: the even input in the low nibble) → int32 [panels, K/8, 16]."""
    words = nibbles.contiguous().view(_int32())
    even, odd = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
    return _panels(_gathered(even) | (_gathered(odd) << 16))


def unpack_weights(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """int32 [panels, K/8, 16] → int8 [N, K]: the integers that the kernel multiplies."""
    import torch

    words = packed.permute(0, 2, 1).reshape(-1, packed.shape[1])[:outputs]
    shifts = torch.tensor([step % 2 * 16 + step // 2 * 4 for step in range(WORD)], dtype=torch.int32)
    values = (words[..., None] >> shifts) & 0xF
    return ((values ^ 8) - 8).to(torch.int8).reshape(outputs, -1)


def pack_scales(scales: torch.Tensor) -> torch.Tensor:
    """[N, groups] → float32 [panels, groups, 16]."""
    return _panels(scales.float())


def unpack_scales(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """float32 [panels, groups, 16] → [N, groups]."""
    return packed.permute(0, 2, 1).reshape(-1, packed.shape[1])[:outputs]


def _int32() -> torch.dtype:
    import torch

    return torch.int32


def _gathered(words: torch.Tensor) -> torch.Tensor:
    """Nibbles at bits 0, 8, 16, 24 moved to 0, 4, 8, 12."""
    pairs = (words | (words >> 4)) & 0x00FF00FF
    return (pairs | (pairs >> 8)) & 0xFFFF


def _panels(rows: torch.Tensor) -> torch.Tensor:
    """[N, columns] → [panels, columns, 16], zeros past N."""
    import torch

    missing = -len(rows) % PANEL
    if missing:
        rows = torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))
    return rows.view(-1, PANEL, rows.shape[1]).transpose(1, 2).contiguous()
