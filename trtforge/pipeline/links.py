"""The stable name of a published bundle: ``bundles/<recipe name>`` → its directory in the store."""

from __future__ import annotations

import os
from pathlib import Path

from trtforge.ground.errors import ForgeError


def linked_bundle(output: Path, name: str) -> Path | None:
    """Where ``output/name`` leads now, whether or not that is still there; None when it is no link."""
    link = output / name
    return link.resolve() if link.is_symlink() else None


def link_bundle(bundle: Path, output: Path, name: str) -> Path:
    """Point ``output/name`` at ``bundle`` in one step; returns the link.

    Raises:
        ForgeError: TF-STO-011 when something that is no symbolic link has that name.
    """
    output.mkdir(parents=True, exist_ok=True)
    link = output / name
    if os.path.lexists(link):
        if not link.is_symlink():
            raise ForgeError(
                "TF-STO-011",
                f"{link} exists and is no link to a bundle",
                asked=str(link),
                why="the name of the recipe is kept for a link to its newest bundle; nothing of yours is overwritten",
                remedies=["move it away", "name another folder with --output"],
            )
        if link.resolve() == bundle.resolve():
            return link
    temporary = output / f".{name}.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(bundle.resolve(), output.resolve()))
    temporary.replace(link)
    return link
