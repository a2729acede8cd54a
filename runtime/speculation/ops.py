"""The op library as drafting and verification call it, and the best token of a row with its probability."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from plugins.host.library import HostLibrary


@lru_cache(maxsize=1)
def host_ops() -> HostLibrary | None:
    """The host op library; None where none was built and none is named.

    Raises:
        EnvironmentLacks: TF-OPS-001 … 004 a library that is named or was built cannot be used.
    """
    from runtime.executors.host_kernels import open_library

    return open_library()


def picked(rows: torch.Tensor, places: npt.NDArray[np.int64]) -> torch.Tensor:
    """A copy of some rows [n, …]."""
    import torch

    return rows.index_select(0, torch.from_numpy(places).to(rows.device))


def best_tokens(logits: torch.Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Of each row of float32 [L, V] the first largest column, int64 [L], and its probability, float32 [L]."""
    import torch

    library = host_ops() if logits.device.type == "cpu" else None
    if library is not None:
        index, largest, total = library.argmax_logsumexp(logits)
        return index.numpy(), np.exp(largest.numpy() - total.numpy())
    largest, index = logits.max(dim=-1)
    return index.cpu().numpy(), torch.exp(largest - torch.logsumexp(logits, dim=-1)).cpu().numpy()
