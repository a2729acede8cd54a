"""Holds a stage's inputs against their hashes before the stage runs: what is made of damage would carry it unseen.

Cost: every file of an input is read and hashed once a run, at most, under however many names it is stored; what
this run published or hashed already is looked at by size and times only, that of the last change among them, which
nobody sets back. A run whose stages are all cached hashes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from trtforge.ground.progress import Progress
from trtforge.store.artifact import Artifact
from trtforge.store.export import DamagedArtifact
from trtforge.store.store import Damage, Store


class SoundInputs:
    """Checks inputs in one run, which trusts no hash of a run before it; one instance a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.hashes.clear()

    def require(self, inputs: Iterable[Artifact], progress: Progress) -> None:
        """Refuse to use an input whose bytes are not what was published.

        Raises:
            DamagedArtifact: TF-STO-012 with the first file that differs.
        """
        for artifact in inputs:
            found = self._store.check_bytes(artifact, progress)
            if isinstance(found, Damage):
                raise DamagedArtifact(artifact, found.reason)
