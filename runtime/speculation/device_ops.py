"""The tree ops on the device that holds the logits: the CUDA library's where one was built.

A draft tree is small and its bookkeeping lies on the host; what is large is the logits. So state and results travel
(some hundred numbers a level), and the logits stay where they were computed.

Not run on a GPU so far: the tests run the library's host shim.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING

from plugins.trees import DraftTree, StaticTree, TreeShape, TreeState
from trtforge.ground.errors import EnvironmentLacks

if TYPE_CHECKING:
    import torch

    from plugins.cuda.library import CudaLibrary


@lru_cache(maxsize=1)
def cuda_ops() -> CudaLibrary | None:
    """The CUDA op library; None where none was built."""
    from plugins.cuda.library import CudaLibrary, find_cuda_library

    try:
        library = CudaLibrary(find_cuda_library())
    except EnvironmentLacks:
        return None
    library.checked = False  # what is passed was checked when it was made; asking waits for the device in every call
    return library


def tree_build(
    library: CudaLibrary,
    logits: torch.Tensor,
    roots: torch.Tensor,
    state: TreeState,
    shape: TreeShape,
    level: int,
    *,
    draft_to_target: torch.Tensor | None = None,
    static: StaticTree | None = None,
) -> DraftTree:
    """EagleTreeBuild where ``logits`` lie, for a state and a tree on the host; arguments as the op's.

    ``state`` is changed in place, as the op does.
    """

    device = logits.device

    def there(part: torch.Tensor | None) -> torch.Tensor | None:
        return None if part is None else part.to(device)

    moved = TreeState(*(getattr(state, field.name).to(device) for field in fields(state)))
    fixed = None if static is None else StaticTree(static.parents.to(device), static.ranks.to(device))
    tree = library.eagle_tree_build(
        logits, roots.to(device), moved, shape, level, draft_to_target=there(draft_to_target), static=fixed
    )
    for field in fields(state):
        getattr(state, field.name).copy_(getattr(moved, field.name))
    parts: list[torch.Tensor] = [getattr(tree, field.name).cpu() for field in fields(tree)]
    return DraftTree(*parts)
