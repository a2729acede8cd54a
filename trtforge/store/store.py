"""The artifact store: content-keyed directories, published in two phases, never half written.

Layout below the root (one file system, so that a rename publishes)::

    store.json                        version of this layout
    artifacts/<stage>/<key[:16]>/     published: manifest.json, COMPLETE and the stage's files
    tmp/<stage>-<key[:16]>-<random>/  being written; swept when its lock is free
    scratch/<stage>/<key[:16]>/       resumable work of an unfinished stage
    locks/                            one lock a (stage, key), one for collecting garbage
    runs/<name>.json                  what the last run of a recipe of that name used
    active/                           what runs in progress use, so that gc leaves it alone
    quarantine/                       damaged artifacts, taken out of use
    logs/                             one file a run

Policy: an artifact that fails its check when it is about to be used is not used: it moves to
quarantine, the run says so and builds it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.files import free_bytes, fsync_path, read_json, remove_tree, tree_bytes, write_json_atomic
from trtforge.ground.hashing import HashMemo, as_read_back, json_safe
from trtforge.ground.paths import user_path
from trtforge.ground.progress import Progress
from trtforge.ground.redaction import redact_value
from trtforge.ground.versions import is_version
from trtforge.store import locks
from trtforge.store.artifact import Artifact, StageResult
from trtforge.store.made_on import machine_stamps
from trtforge.store.manifest import (
    SCHEMA_VERSION,
    cheap_damage,
    content_hash,
    gates_to_json,
    list_content,
    measured_hash,
    now,
    read_sealed,
    seal,
    self_contradiction,
)
from trtforge.store.objects import Objects
from trtforge.store.steps import step

LAYOUT_VERSION = 1
KEY_DIGITS = 16
#: how libraries that hide the error number word it
_FULL_SIGNS = ("No space left on device", "os error 28", "Disk quota exceeded", "File too large", "os error 27")


def default_root(option: Path | None = None) -> Path:
    """The store's folder: ``option`` (``--store``), else ``TRTFORGE_HOME``, else ``.trtforge`` below the cwd."""
    if option is not None:
        return user_path(option, code="TF-STO-001", asked=f"--store {option}").absolute()
    home = os.environ.get("TRTFORGE_HOME")
    if home:
        return user_path(home, code="TF-STO-001", asked=f"TRTFORGE_HOME={home}").absolute()
    return Path.cwd() / ".trtforge"


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk, a quota or a limit on file sizes is behind an exception, also when a library wrapped it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        text = str(current)
        if any(sign in text for sign in _FULL_SIGNS):
            return True
        current = current.__cause__ or current.__context__
    return False


@dataclass(frozen=True)
class Damage:
    """An artifact that must not be used, and why."""

    path: Path
    reason: str


class Store:
    """Artifacts below one root directory; see the module for the layout.

    Args:
        root: made when missing.
        durable: flush files to the disk before they count as published (tests switch it off).
        read_only: only look; nothing is made, not even the root.
        protect: take write permission from published files.

    Raises:
        EnvironmentLacks: TF-STO-001 when the root cannot be written.
        ForgeError: TF-STO-008 when a newer version of the store's layout is found.
    """

    def __init__(self, root: Path, *, durable: bool = True, read_only: bool = False, protect: bool = False) -> None:
        self.root = root.absolute()
        self.durable = durable
        self.protect = protect
        #: what this process hashed and nobody touched since
        self.hashes = HashMemo()
        self.objects = Objects(self.root, self.hashes)
        if not read_only:
            self._make()
        record = read_json(self.root / "store.json")
        version = record.get("version") if isinstance(record, dict) else None
        if not is_version(version, LAYOUT_VERSION) and os.path.exists(self.root / "store.json"):  # noqa: PTH110 (never raises)
            raise ForgeError(
                "TF-STO-008",
                f"the store {self.root} has layout {version!r}, this version works with {LAYOUT_VERSION}",
                asked=str(self.root),
                numbers={"found": version, "supported": LAYOUT_VERSION},
                why="another version of trtforge made the store",
                remedies=["name another folder with --store", "use the version that made the store"],
            )

    def _make(self) -> None:
        try:
            for name in ("artifacts", "tmp", "scratch", "locks", "runs", "active", "links", "logs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            version_file = self.root / "store.json"
            if not version_file.exists():
                write_json_atomic(version_file, {"version": LAYOUT_VERSION}, durable=self.durable)
        except OSError as error:
            raise EnvironmentLacks(
                "TF-STO-001",
                f"the store {self.root} cannot be written: {error.strerror or error}",
                asked=str(self.root),
                numbers={"free_bytes": free_bytes(self.root)},
                why="artifacts are kept in the store",
                remedies=["name a writable folder with --store or TRTFORGE_HOME", "free disk space or fix permissions"],
            ) from error

    # -- places ---------------------------------------------------------------------------------

    def artifact_path(self, stage: str, key: str) -> Path:
        """Where the artifact of (stage, key) lies once published."""
        return self.root / "artifacts" / stage / key[:KEY_DIGITS]

    def scratch_path(self, stage: str, key: str) -> Path:
        """The resumable folder of (stage, key); not created here."""
        return self.root / "scratch" / stage / key[:KEY_DIGITS]

    def lock_path(self, stage: str, key: str) -> Path:
        return self.root / "locks" / f"{stage}-{key[:KEY_DIGITS]}.lock"

    # -- locks ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, stage: str, key: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the lock of (stage, key); ``on_wait`` gets the holder's description when it is not free at once."""
        with locks.hold(self.lock_path(stage, key), on_wait=on_wait):
            yield

    # -- reading --------------------------------------------------------------------------------

    def load(self, path: Path) -> Artifact | Damage:
        """The artifact in a directory of this store by the cheap check (manifest hash, sizes), or what is wrong."""
        sealed = read_sealed(path)
        if isinstance(sealed, str):
            return Damage(path, sealed)
        manifest, digest = sealed
        if contradiction := self_contradiction(manifest):
            return Damage(path, contradiction)
        if damage := cheap_damage(path, manifest):
            return Damage(path, damage)
        return Artifact(manifest["stage"], manifest["key"], path, {**manifest, "manifest_sha256": digest})

    def find(self, stage: str, key: str, *, full: bool = False) -> Artifact | Damage | None:
        """The artifact of (stage, key), :class:`Damage` when it must not be used, ``None`` when there is none.

        ``full`` hashes every file; otherwise the manifest's hash and the sizes are compared.
        """
        path = self.artifact_path(stage, key)
        if not path.is_dir():
            return None
        loaded = self.load(path)
        if isinstance(loaded, Damage):
            return loaded
        if loaded.stage != stage or loaded.key != key:
            return Damage(path, f"the directory holds {loaded.stage} {loaded.key[:KEY_DIGITS]}, not what its name says")
        return self.check_bytes(loaded) if full else loaded

    def check_bytes(self, artifact: Artifact, progress: Progress | None = None) -> Artifact | Damage:
        """``artifact`` when every byte of its directory is what was published, or what is wrong."""
        from trtforge.store.verify import verify_content

        faults = [
            item
            for item in verify_content(artifact.path, progress=progress, memo=self.hashes).findings
            if item.severity == "error"
        ]
        return Damage(artifact.path, f"{faults[0].path}: {faults[0].message}") if faults else artifact

    def artifacts(self) -> list[Artifact | Damage]:
        """Every directory under ``artifacts``, oldest first by stage."""
        found: list[Artifact | Damage] = []
        base = self.root / "artifacts"
        if not base.is_dir():
            return found
        for stage in sorted(p for p in base.iterdir() if p.is_dir()):
            paths = [p for p in stage.iterdir() if p.is_dir()]
            found.extend(self.load(p) for p in sorted(paths, key=lambda p: (p.stat().st_mtime_ns, p.name)))
        return found

    def of_stage(self, stage: str) -> list[Artifact]:
        """The artifacts of one stage that pass the cheap check, the newest first."""
        base = self.root / "artifacts" / stage
        paths = [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []
        loaded = (self.load(path) for path in sorted(paths, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True))
        return [found for found in loaded if isinstance(found, Artifact)]

    def touch(self, artifact: Artifact) -> None:
        """Record that an artifact was used now (garbage collection goes by last use)."""
        with contextlib.suppress(OSError):
            os.utime(artifact.path / "COMPLETE")

    def quarantine(self, damage: Damage) -> Path:
        """Take a damaged artifact out of use; returns where it went. The caller holds the artifact's lock."""
        folder = self.root / "quarantine"
        folder.mkdir(exist_ok=True)
        target = folder / f"{damage.path.parent.name}-{damage.path.name}-{int(time.time())}-{secrets.token_hex(3)}"
        damage.path.rename(target)
        return target

    # -- writing --------------------------------------------------------------------------------

    def begin(self, stage: str, key: str) -> Path:
        """A fresh directory to write the artifact of (stage, key) in. The caller holds its lock.

        What an earlier, killed attempt left is removed; its scratch folder stays.
        """
        prefix = f"{stage}-{key[:KEY_DIGITS]}-"
        for leftover in (self.root / "tmp").glob(f"{prefix}*"):
            remove_tree(leftover)
        path = self.root / "tmp" / f"{prefix}{secrets.token_hex(4)}"
        path.mkdir()
        self.scratch_path(stage, key).mkdir(parents=True, exist_ok=True)
        step("begin.made")
        return path

    def abandon(self, temporary: Path) -> None:
        """Remove an unfinished directory made by :meth:`begin`."""
        remove_tree(temporary)

    def publish(
        self,
        temporary: Path,
        *,
        stage: str,
        key: str,
        ingredients: Mapping[str, Any],
        inputs: Mapping[str, Artifact],
        result: StageResult,
        seconds: float,
        advance: Callable[[float], None] | None = None,
    ) -> Artifact:
        """Seal a directory made by :meth:`begin` and rename it into place. The caller holds the lock.

        When an artifact of the same key is there (a forced run) and all files are identical, the old one
        stays and is returned; otherwise it is replaced.

        Raises:
            ForgeError: TF-STO-003 on content that cannot be published.
        """
        content = list_content(temporary, measured=result.measured, advance=advance, memo=self.hashes)
        summary = as_read_back(redact_value(json_safe(result.summary)))
        measurements = as_read_back(redact_value(json_safe(result.measurements)))
        step("publish.hashed")
        manifest: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "stage": stage,
            "key": key,
            "content_hash": content_hash(content, summary),
            "measured_hash": measured_hash(content, measurements),
            "ingredients": dict(ingredients),
            "inputs": {
                name: {
                    "stage": artifact.stage,
                    "key": artifact.key,
                    "content_hash": artifact.manifest["content_hash"],
                    "measured_hash": artifact.manifest["measured_hash"],
                    "manifest_sha256": artifact.manifest["manifest_sha256"],
                }
                for name, artifact in inputs.items()
            },
            "tools": dict(ingredients.get("tools", {})),
            "summary": summary,
            "measurements": measurements,
            "gates": gates_to_json(result.gates),
            "gates_passed": all(gate.passed for gate in result.gates),
            "created": now(),
            "seconds": round(seconds, 3),
            "machine": machine_stamps(),
            "stamps": result.stamps,
            **content,
        }
        final = self.artifact_path(stage, key)
        # by every byte: what is silently damaged must not outlive the run that made it anew
        existing = self.find(stage, key, full=True)
        if isinstance(existing, Artifact) and _same(existing.manifest, manifest):
            self.abandon(temporary)
            self._drop_scratch(stage, key)
            return existing
        self.objects.share(temporary, content["files"], handed_out=result.handed_out)
        digest = seal(temporary, manifest, durable=self.durable)
        if self.protect:
            for entry in content["files"]:
                (temporary / entry["path"]).chmod(0o444)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            # Two renames, not one: killed in between, the artifact is simply absent and built again.
            old = self.root / "tmp" / f"{stage}-{key[:KEY_DIGITS]}-old-{secrets.token_hex(4)}"
            final.rename(old)
            step("publish.old_moved")
            temporary.rename(final)
            remove_tree(old)
        else:
            temporary.rename(final)
        step("publish.renamed")
        if self.durable:
            fsync_path(final.parent)
        self._drop_scratch(stage, key)
        step("publish.done")
        return Artifact(stage, key, final, {**manifest, "manifest_sha256": digest})

    def _drop_scratch(self, stage: str, key: str) -> None:
        remove_tree(self.scratch_path(stage, key))

    def sweep(self) -> list[Path]:
        """Remove what killed runs left behind; what a living run holds the lock of stays.

        That is: unfinished directories, scratch folders of stages that were published, records of runs.
        """
        removed: list[Path] = []
        for leftover in sorted((self.root / "tmp").iterdir()):
            stage, _, rest = leftover.name.partition("-")
            key = rest.partition("-")[0]
            if not key:
                continue
            with locks.try_hold(self.lock_path(stage, key)) as held:
                if held and leftover.exists():
                    remove_tree(leftover)
                    removed.append(leftover)
        for leftover in sorted((self.root / "scratch").glob("*/*")):
            stage, key = leftover.parent.name, leftover.name
            if (self.artifact_path(stage, key) / "COMPLETE").exists():
                with locks.try_hold(self.lock_path(stage, key)) as held:
                    if held:
                        remove_tree(leftover)
                        removed.append(leftover)
        for lock in sorted((self.root / "active").glob("*.lock")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime < 60:
                    continue  # a run that is just starting may have made the file and not locked it yet
                with locks.try_hold(lock) as held:
                    if held:
                        record = lock.with_suffix(".json")
                        if record.exists():
                            record.unlink(missing_ok=True)
                            removed.append(record)
                        lock.unlink(missing_ok=True)
        return removed

    # -- errors ---------------------------------------------------------------------------------

    def disk_full(self, stage: str, key: str, written: int, cause: BaseException) -> ForgeError:
        """The error for a full disk: what was free, what the stage had written, what it needs at least."""
        sizes = [
            sum(entry["size"] for entry in artifact.manifest["files"])
            for artifact in self.artifacts()
            if isinstance(artifact, Artifact) and artifact.stage == stage
        ]
        needed = max([*sizes, written + 1])
        scratch = tree_bytes(self.scratch_path(stage, key))
        return EnvironmentLacks(
            "TF-STO-002",
            f"the disk is full: stage {stage} could not be written",
            asked=str(self.root),
            numbers={
                "free_bytes": free_bytes(self.root),
                "written_bytes": written,
                "needed_bytes_at_least": needed,
                "kept_scratch_bytes": scratch,
            },
            why=f"a write failed ({cause}); the unfinished directory was removed, resumable work was kept",
            remedies=[
                "run `trtforge artifacts gc` to remove artifacts that no recipe's last run uses",
                "put the store on a larger disk with --store or TRTFORGE_HOME, then run again",
                "raise the quota or the limit on file sizes (ulimit -f) when the disk itself has room",
            ],
        )


def _same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two manifests of one key publish the same files, figures and verdicts (run facts aside)."""
    names: Sequence[str] = ("content_hash", "measured_hash", "files", "links", "directories", "gates", "stamps")
    return all(left.get(name) == right.get(name) for name in names) and _input_hashes(left) == _input_hashes(right)


def _input_hashes(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return sorted((name, e["content_hash"], e["measured_hash"]) for name, e in manifest["inputs"].items())
