"""What a stage leaves on a GPU.

torch keeps the memory of tensors that are gone for its own next ones. The next stage's memory is wanted by others: the
process of a builder, an engine or a server. So nothing is kept from one stage to the next.
"""

from __future__ import annotations

import gc
import sys


def release_gpu_memory() -> None:
    """Give back what torch holds of tensors that nobody has any more; nothing where torch or a GPU was not used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()  # models are full of cycles
        torch.cuda.empty_cache()
