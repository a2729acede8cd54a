"""Which files of a draft's folder an engine is made of: its configuration and its safetensors, nothing else."""

from __future__ import annotations

from pathlib import Path

from trtforge.drafting.record import DRAFTED_METHODS
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path
from trtforge.ground.safetensors_header import INDEX_NAME, require_regular, weight_files
from trtforge.recipe.schema import Speculation

#: small files that decide what the draft computes, where they are there
_CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json", INDEX_NAME)


def draft_files(folder: Path) -> list[Path]:
    """The files of a draft that an engine is made of.

    Raises:
        ForgeError: ``TF-GRF-020`` a link leads out of the folder; ``TF-SRC-032`` a pipe or a device in a file's place.
    """
    files = [folder / name for name in (*_CONFIGS, *weight_files(folder)) if (folder / name).exists()]
    root = real_path(folder)
    for path in files:
        if not real_path(path).is_relative_to(root):
            raise ForgeError(
                "TF-GRF-020",
                f"{path.name} of the draft is a link out of its folder",
                asked=f"speculation.draft: {folder}",
                why="A bundle carries its draft whole; what a link leads to may be another file tomorrow.",
                remedies=[f"cp -rL {folder.name} {folder.name}-whole, then speculation.draft: {folder.name}-whole"],
            )
        require_regular(path)
    return files


def needs_draft(speculation: Speculation) -> bool:
    """Whether the method drafts with weights of its own in trtforge's runtime."""
    return speculation.method in DRAFTED_METHODS
