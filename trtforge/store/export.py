"""Copies out of an artifact, held against its manifest.

Policy: a copy gets a manifest of its own, which would make damage look intact. So whatever leaves an
artifact is hashed as it arrives and compared with what the artifact's manifest says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trtforge.errors import ForgeError
from trtforge.pipeline.stage import Artifact
from trtforge.store.files import copy_file, copy_tree
from trtforge.store.hashing import hash_file
from trtforge.store.manifest import RESERVED


class DamagedArtifact(ForgeError):
    """A published artifact turned out damaged while it was used (TF-STO-012); the pipeline takes it out of use."""

    def __init__(self, artifact: Artifact, file: str, reason: str) -> None:
        super().__init__(
            "TF-STO-012",
            f"the artifact of stage {artifact.stage} is damaged: {file} {reason}",
            asked=str(artifact.path / file),
            numbers={"stage": artifact.stage, "key": artifact.key[:16]},
            why="Its content is not what was published; what is made of it would carry the damage unseen.",
            remedies=[
                "run the recipe again: the damaged artifact is out of use and is built anew",
                "check the disk (dmesg, smartctl) when nobody changed the file",
            ],
        )
        self.artifact = artifact
        self.file = file
        self.reason = reason


def copy_artifact_file(
    artifact: Artifact, name: str, target: Path, advance: Callable[[float], None] | None = None
) -> None:
    """Copy the file ``name`` of ``artifact`` to ``target``; :class:`DamagedArtifact` when it is not what was sealed."""
    sealed = {entry["path"]: entry["sha256"] for entry in artifact.manifest["files"]}
    try:
        copy_file(artifact.path / name, target, advance)
    except FileNotFoundError:
        if (artifact.path / name).exists():
            raise
        raise DamagedArtifact(artifact, name, "is missing") from None
    _compare(artifact, name, target, sealed)


def copy_artifact(
    artifact: Artifact, target: Path, advance: Callable[[float], None] | None = None, *, below: str = ""
) -> None:
    """Copy the content of ``artifact`` (of its folder ``below``) into ``target``, without manifest and COMPLETE.

    Raises:
        DamagedArtifact: TF-STO-012 when a file is missing, not listed or not what was sealed.
    """
    prefix = f"{below}/" if below else ""
    copy_tree(artifact.path / below, target, advance, exclude=() if below else RESERVED)
    sealed = {entry["path"]: entry["sha256"] for entry in artifact.manifest["files"]}
    arrived = {
        f"{prefix}{path.relative_to(target).as_posix()}": path
        for path in target.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    for name, path in sorted(arrived.items()):
        _compare(artifact, name, path, sealed)
    for name in sealed:
        if name.startswith(prefix) and name not in arrived:
            raise DamagedArtifact(artifact, name, "is missing")


def _compare(artifact: Artifact, name: str, copy: Path, sealed: dict[str, str]) -> None:
    if name not in sealed:
        raise DamagedArtifact(artifact, name, "is not in its manifest")
    if hash_file(copy) != sealed[name]:
        raise DamagedArtifact(artifact, name, "has not the SHA-256 that its manifest says")
