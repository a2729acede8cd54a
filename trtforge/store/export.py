"""Copies out of an artifact, held against its manifest.

Policy: a copy gets a manifest of its own, which would make damage look intact. So whatever leaves an
artifact is hashed as it arrives and compared with what the artifact's manifest says.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.ground.files import copy_file, copy_tree, walk_files
from trtforge.ground.hashing import hash_file
from trtforge.store.artifact import Artifact
from trtforge.store.manifest import RESERVED


class DamagedArtifact(ForgeError):
    """A published artifact turned out damaged when it was to be used (TF-STO-012); the caller takes it out of use.

    ``reason`` is a sentence that names the file.
    """

    def __init__(self, artifact: Artifact, reason: str) -> None:
        super().__init__(
            "TF-STO-012",
            f"the artifact of stage {artifact.stage} is damaged: {reason}",
            asked=str(artifact.path),
            numbers={"stage": artifact.stage, "key": artifact.key[:16]},
            why="Its content is not what was published; what is made of it would carry the damage unseen.",
            remedies=[
                "run the recipe again: the damaged artifact, and what was made of it, is out of use and is built anew",
                "check the disk (dmesg, smartctl) when nobody changed the file",
            ],
        )
        self.artifact = artifact
        self.reason = reason


def copy_artifact_file(
    artifact: Artifact, name: str, target: Path, advance: Callable[[float], None] | None = None
) -> None:
    """Copy the file ``name`` of ``artifact`` to ``target``; :class:`DamagedArtifact` when it is not what was sealed."""
    sealed = {entry["path"]: entry["sha256"] for entry in artifact.manifest["files"]}
    if os.path.lexists(artifact.path / name) and not stat.S_ISREG((artifact.path / name).lstat().st_mode):
        raise DamagedArtifact(artifact, f"{name} is no regular file")
    try:
        copy_file(artifact.path / name, target, advance)
    except FileNotFoundError:
        if (artifact.path / name).exists():
            raise
        raise DamagedArtifact(artifact, f"{name} is missing") from None
    _compare(artifact, name, target, sealed)


def copy_artifact(
    artifact: Artifact, target: Path, advance: Callable[[float], None] | None = None, *, below: str = ""
) -> None:
    """Copy the content of ``artifact`` (of its folder ``below``) into ``target``, without manifest and COMPLETE.

    Raises:
        DamagedArtifact: TF-STO-012 when a file is missing, not listed or not what was sealed.
    """
    prefix = f"{below}/" if below else ""
    present = {f"{prefix}{name}": status for name, status in walk_files(artifact.path / below)}
    sealed = {entry["path"]: entry["sha256"] for entry in artifact.manifest["files"]}
    links = {entry["path"]: entry["target"] for entry in artifact.manifest["links"]}
    for name, status in present.items():
        # before the copy: opening a FIFO would wait for ever
        if stat.S_ISLNK(status.st_mode):
            if links.get(name) != str((artifact.path / name).readlink()):
                raise DamagedArtifact(artifact, f"{name} is a symbolic link that its manifest does not list")
        elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise DamagedArtifact(artifact, f"{name} is no regular file")
    copy_tree(artifact.path / below, target, advance, exclude=() if below else RESERVED)
    arrived = {
        f"{prefix}{path.relative_to(target).as_posix()}": path
        for path in target.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    for name, path in sorted(arrived.items()):
        _compare(artifact, name, path, sealed)
    for name in (*sealed, *links):
        if name.startswith(prefix) and name not in present:
            raise DamagedArtifact(artifact, f"{name} is missing")


def copy_published(artifact: Artifact, target: Path) -> None:
    """:func:`copy_artifact` with manifest and COMPLETE: what ``trtforge verify`` looks at."""
    copy_artifact(artifact, target)
    for name in RESERVED:
        copy_file(artifact.path / name, target / name)


def _compare(artifact: Artifact, name: str, copy: Path, sealed: dict[str, str]) -> None:
    if name not in sealed:
        raise DamagedArtifact(artifact, f"{name} is not in its manifest")
    if hash_file(copy) != sealed[name]:
        raise DamagedArtifact(artifact, f"{name} has not the SHA-256 that its manifest says")
