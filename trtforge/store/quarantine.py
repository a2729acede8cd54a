"""Takes damaged artifacts out of use, and with them everything that was made of them.

Policy: nobody knows when a file was damaged, so what was made of it may carry the damage under good hashes of its
own. It goes too, transitively, by the inputs that the manifests record: they name the very artifact (its
manifest's hash), so that what was made of an earlier or later artifact of the same key stays. Nothing is deleted
(``trtforge artifacts gc`` does that), and locks are taken one at a time, upstream before downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtforge.ground.json_file import PlainRecord
from trtforge.store.export import DamagedArtifact
from trtforge.store.manifest import read_sealed
from trtforge.store.store import KEY_DIGITS, Damage, Store

DAMAGED = "TF-STO-012"
MADE_OF_DAMAGED = "TF-STO-013"


@dataclass(frozen=True)
class TakenOut(PlainRecord):
    """One artifact that went to quarantine: stage and key[:16], why (a code and a sentence), and where it is now."""

    code: str
    stage: str
    key: str
    reason: str
    path: Path

    def __str__(self) -> str:
        return f"{self.code}: {self.stage} {self.key} {self.reason}; moved to {self.path}, and made again when needed"


@dataclass(frozen=True)
class _Published:
    """One directory of the store as its manifest describes it; an unreadable manifest has no hash and no inputs."""

    path: Path
    digest: str | None
    inputs: tuple[Mapping[str, Any], ...]

    @property
    def stage(self) -> str:
        return self.path.parent.name

    @property
    def key(self) -> str:
        return self.path.name

    def is_made_of(self, other: _Published) -> bool:
        if other.digest is not None:
            return any(entry.get("manifest_sha256") == other.digest for entry in self.inputs)
        return any(
            entry.get("stage") == other.stage and str(entry.get("key"))[:KEY_DIGITS] == other.key
            for entry in self.inputs
        )


def _published(path: Path) -> _Published:
    sealed = read_sealed(path)
    if isinstance(sealed, str):
        return _Published(path, None, ())
    manifest, digest = sealed
    inputs = manifest.get("inputs")
    entries = inputs.values() if isinstance(inputs, Mapping) else ()
    return _Published(path, digest, tuple(entry for entry in entries if isinstance(entry, Mapping)))


def _made_of(store: Store, damaged: _Published) -> list[tuple[_Published, _Published]]:
    """What was made of ``damaged``, directly or not, each with the one that it was made of; nearest first."""
    everything = [_published(path) for path in sorted((store.root / "artifacts").glob("*/*")) if path.is_dir()]
    found: dict[Path, tuple[_Published, _Published]] = {}
    pending = [damaged]
    while pending:
        origin = pending.pop(0)
        for item in everything:
            if item.path not in found and item.path != damaged.path and item.is_made_of(origin):
                found[item.path] = (item, origin)
                pending.append(item)
    return list(found.values())


def quarantine(
    store: Store,
    damage: Damage,
    *,
    digest: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    locked: bool = False,
) -> list[TakenOut]:
    """Take a damaged artifact and everything that was made of it out of use.

    Args:
        digest: hash of the manifest of the very artifact that is meant: what another run has made anew under its key
            stays. None: the one that is there now.
        say: told of each, and of the process that a lock is waited for.
        locked: the caller holds the lock of the damaged artifact (and no other).

    Returns:
        What was moved; empty when another process had done so before.
    """
    here = _published(damage.path)
    damaged = here if digest is None else replace(here, digest=digest)
    taken: list[TakenOut] = []

    def move(item: _Published, code: str, reason: str) -> None:
        # between looking and locking, another run may have replaced it: then it is not the one that is meant
        if item.path.is_dir() and _published(item.path).digest in (item.digest, None):
            where = store.quarantine(Damage(item.path, reason))
            taken.append(TakenOut(code, item.stage, item.key, reason, where))
            say(str(taken[-1]))

    def lock_and_move(item: _Published, code: str, reason: str) -> None:
        with store.lock(
            item.stage, item.key, lambda who: say(f"{item.stage}: waiting for {who}, to take {item.key} out of use")
        ):
            move(item, code, reason)

    (move if locked else lock_and_move)(damaged, DAMAGED, f"is damaged ({damage.reason})")
    for item, origin in _made_of(store, damaged):
        lock_and_move(item, MADE_OF_DAMAGED, f"was made of {origin.stage} {origin.key}, which is out of use")
    return taken


def quarantine_of(
    store: Store, error: DamagedArtifact, *, say: Callable[[str], None] = lambda text: None
) -> list[TakenOut]:
    """:func:`quarantine` for damage that was met while an artifact was used; the caller holds no lock."""
    artifact = error.artifact
    return quarantine(store, Damage(artifact.path, error.reason), digest=artifact.manifest["manifest_sha256"], say=say)
