"""Holds a stage's inputs against their hashes before the stage runs: what is made of damage would carry it unseen.

Cost: every file of an input is read and hashed once a run, at most; what this run published or hashed already is
looked at by size and times only, that of the last change among them, which nobody sets back. A run whose stages are
all cached hashes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtforge.ground.progress import Progress
from trtforge.store.artifact import Artifact
from trtforge.store.export import DamagedArtifact
from trtforge.store.store import Damage, Store


class SoundInputs:
    """Remembers which artifacts this run has hashed; one instance a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hashed: dict[tuple[Path, str], list[tuple[int, ...]]] = {}

    def know(self, artifact: Artifact) -> None:
        """This run hashed every file of ``artifact`` (as it published it, or as it looked it up)."""
        self._hashed[_identity(artifact)] = _as_it_is(artifact)

    def require(self, inputs: Iterable[Artifact], progress: Progress) -> None:
        """Refuse to use an input whose bytes are not what was published.

        Raises:
            DamagedArtifact: TF-STO-012 with the first file that differs.
        """
        for artifact in inputs:
            known = self._hashed.get(_identity(artifact)) == _as_it_is(artifact)
            found = self._store.load(artifact.path) if known else self._store.check_bytes(artifact, progress)
            if isinstance(found, Damage):
                raise DamagedArtifact(artifact, found.reason)
            self.know(artifact)


def _identity(artifact: Artifact) -> tuple[Path, str]:
    return artifact.path, str(artifact.manifest["manifest_sha256"])


def _as_it_is(artifact: Artifact) -> list[tuple[int, ...]]:
    """What the file system says of every file; nothing of one that cannot be looked up."""
    found: list[tuple[int, ...]] = []
    for entry in artifact.manifest["files"]:
        try:
            status = (artifact.path / entry["path"]).lstat()
        except OSError:
            found.append(())
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found
