"""The graph that drafts, in the sub-folder ``draft`` of its target's graph: of an EAGLE-3 head, or of a small model."""

from __future__ import annotations

from pathlib import Path

from builder.draft_files import draft_files
from builder.files import copy_file
from builder.graphs.build import build_graph
from builder.graphs.eagle3 import build_eagle3, inspect_head, tapped_states
from builder.graphs.info import GraphInfo
from trtforge.drafting.record import DRAFT_DIR
from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Speculation


def taps_of(speculation: Speculation, draft: Path | None, checkpoint: Path) -> tuple[int, ...]:
    """i of the outputs ``hidden_states_i`` that the target's graph needs; none where no head reads them."""
    if speculation.method != "eagle3" or draft is None:
        return ()
    return tapped_states(inspect_head(draft, checkpoint))


def build_draft(
    speculation: Speculation,
    draft: Path,
    checkpoint: Path,
    out: Path,
    *,
    dtype: str,
    block_size: int,
    progress: Progress | None = None,
) -> GraphInfo:
    """Write the draft's graph into ``out / "draft"``.

    Args:
        draft: the folder that ``speculation.draft`` names.
        checkpoint: the target's, quantized or not; tables that the head shares are copied from it.
        dtype: element type of activations and pools, the target graph's.

    Raises:
        ForgeError: ``TF-GRF-020`` links; as :func:`~builder.graphs.eagle3.build_eagle3` or
            :func:`~builder.graphs.build.build_graph`.
    """
    files, folder = draft_files(draft), out / DRAFT_DIR
    if speculation.method == "eagle3":
        tree = speculation.choices is not None or speculation.dynamic_tree is not None
        return build_eagle3(
            inspect_head(draft, checkpoint),
            folder,
            dtype=dtype,
            block_size=block_size,
            tree_mask=tree,
            progress=progress,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        copy_file(path, folder / path.name)
    return build_graph(folder, folder, dtype=dtype, block_size=block_size, progress=progress)
