"""Lists, finds and collects artifacts.

Policy of collection: what the last run of any recipe used, what a run in progress uses, and a bundle that
is still linked is never removed (``forget_runs`` gives the first up by name; removing the link gives up the
last). Of the rest everything goes, or only what was not used for ``older_than`` seconds, or all but the
``keep_last`` last used of each stage. Downloads and other resumable work of unfinished stages (``scratch``)
go only when they are older than a week or ``scratch=True``, since they are what a rerun resumes from. Content
that several artifacts share goes with the last of them, and is counted then.
"""

from __future__ import annotations

import contextlib
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.ground.files import remove_tree, tree_bytes, walk_files
from trtforge.ground.json_file import PlainRecord
from trtforge.store import locks
from trtforge.store.artifact import Artifact
from trtforge.store.links import linked_artifacts
from trtforge.store.runs import active_artifacts, all_records, forget, gc_lock
from trtforge.store.store import KEY_DIGITS, Damage, Store

_SCRATCH_AGE = 7 * 86400.0


@dataclass(frozen=True)
class ArtifactRow(PlainRecord):
    """One artifact as a listing shows it."""

    stage: str
    key: str
    path: Path
    bytes: int
    created: str
    last_used: float
    gates_passed: bool
    used_by: tuple[str, ...]
    damage: str | None = None


def _last_used(path: Path) -> float:
    for name in ("COMPLETE", "."):
        with contextlib.suppress(OSError):
            return (path / name).stat().st_mtime
    return 0.0


def list_artifacts(store: Store) -> list[ArtifactRow]:
    """Every artifact of the store with its size, age and the recipes whose last run used it."""
    users: dict[str, list[str]] = defaultdict(list)
    for record in all_records(store):
        for stage, entry in record.stages.items():
            users[f"{stage}/{entry.key[:KEY_DIGITS]}"].append(record.name)
    rows = []
    for item in store.artifacts():
        stage, key = item.path.parent.name, item.path.name
        used_by, last_used = tuple(users.get(f"{stage}/{key}", ())), _last_used(item.path)
        if isinstance(item, Damage):
            size = tree_bytes(item.path)
            rows.append(ArtifactRow(stage, key, item.path, size, "", last_used, False, used_by, item.reason))
        else:
            made, passed = item.manifest["created"], bool(item.manifest["gates_passed"])
            size = sum(entry["size"] for entry in item.manifest["files"])
            rows.append(ArtifactRow(item.stage, item.key, item.path, size, made, last_used, passed, used_by))
    return rows


def disk_bytes(store: Store) -> int:
    """Bytes of all artifacts, content that several of them share counted once (blocks that copies share are not)."""
    sizes = {
        (status.st_dev, status.st_ino): status.st_size
        for _, status in walk_files(store.root / "artifacts", lenient=True)
        if stat.S_ISREG(status.st_mode)
    }
    return sum(sizes.values())


def show_artifact(store: Store, wanted: str) -> Artifact | Damage:
    """The artifact that ``wanted`` names: ``stage/key``, a unique beginning of a key, a lone stage, or a path.

    Raises:
        ForgeError: TF-STO-006 when nothing has that name, TF-STO-007 when several do.
    """
    items = store.artifacts()
    path = Path(wanted)
    if path.is_dir() and (path / "manifest.json").exists():
        return store.load(path.resolve())
    stage, _, prefix = wanted.rpartition("/")
    matches = [
        item
        for item in items
        if (stage in ("", item.path.parent.name) and item.path.name.startswith(prefix[:KEY_DIGITS]))
        or item.path.parent.name == wanted
    ]
    if len(matches) == 1:
        return matches[0]
    names = [f"{item.path.parent.name}/{item.path.name}" for item in (matches or items)]
    if not matches:
        raise ForgeError(
            "TF-STO-006",
            f"no artifact is called {wanted!r}",
            asked=wanted,
            numbers={"artifacts": len(items)},
            why="neither a stage nor the beginning of a key matches",
            remedies=["`trtforge artifacts list` shows all names", *([f"for example {names[0]}"] if names else [])],
        )
    raise ForgeError(
        "TF-STO-007",
        f"{len(matches)} artifacts match {wanted!r}",
        asked=wanted,
        numbers={"matches": len(matches)},
        why="one is needed: " + ", ".join(names[:8]),
        remedies=["give more digits of the key, as stage/key"],
    )


@dataclass
class GcReport(PlainRecord):
    """What a collection removed, or would remove."""

    dry_run: bool
    removed: list[ArtifactRow] = field(default_factory=list)
    kept: int = 0
    other: list[Path] = field(default_factory=list)
    objects: int = 0
    #: of disk
    bytes: int = 0


def collect(
    store: Store,
    *,
    older_than: float | None = None,
    keep_last: int | None = None,
    forget_runs: Sequence[str] = (),
    scratch: bool = False,
    dry_run: bool = False,
) -> GcReport:
    """Remove artifacts that nobody needs; see the module for the policy.

    Args:
        older_than: seconds since last use; younger ones stay.
        keep_last: of each stage keep so many of the last used (beside the protected ones).
        forget_runs: names of recipes whose last run no longer protects anything.
        scratch: remove all resumable work that no living run holds.
        dry_run: report only.
    """
    report = GcReport(dry_run)
    records = {record.name for record in all_records(store)}
    for name in forget_runs:
        if name not in records:
            raise ForgeError(
                "TF-STO-006",
                f"no recipe called {name!r} ran on this store",
                asked=name,
                numbers={"recipes": len(records)},
                why="only the name of a recorded run can be forgotten",
                remedies=[f"one of: {', '.join(sorted(records))}" if records else "nothing is recorded"],
            )
    gone: list[Path] = []
    with locks.hold(gc_lock(store), note_holder=False):
        protected = active_artifacts(store) | linked_artifacts(store)
        rows = list_artifacts(store)
        free_rows: dict[str, list[ArtifactRow]] = defaultdict(list)
        for row in rows:
            by_others = [name for name in row.used_by if name not in forget_runs]
            if by_others or f"{row.path.parent.name}/{row.path.name}" in protected:
                report.kept += 1
            else:
                free_rows[row.stage].append(row)
        for candidates in free_rows.values():
            candidates.sort(key=lambda row: row.last_used, reverse=True)
            for position, row in enumerate(candidates):
                young = older_than is not None and time.time() - row.last_used < older_than
                if young or (keep_last is not None and position < keep_last):
                    report.kept += 1
                    continue
                where = row.path
                if not dry_run:
                    with locks.try_hold(store.lock_path(row.stage, row.key)) as held:
                        if not held:
                            report.kept += 1
                            continue
                        # renaming is quick; deleting happens after the lock is free
                        where = store.root / "tmp" / f"{row.stage}-{row.key[:KEY_DIGITS]}-gc-{secrets.token_hex(4)}"
                        row.path.rename(where)
                report.removed.append(row)
                gone.append(where)
        if not dry_run:
            for name in forget_runs:
                forget(store, name)
    quarantine = store.root / "quarantine"
    gone += sorted(quarantine.iterdir()) if quarantine.is_dir() else []
    with contextlib.ExitStack() as held:
        gone += _old_scratch(store, held, every=scratch)
        report.bytes = store.objects.bytes_freed(gone)
        report.other = gone[len(report.removed) :]
        if not dry_run:
            for path in gone:
                remove_tree(path)
    if not dry_run:
        report.other += store.sweep()
        report.objects = store.objects.collect()
    return report


def _old_scratch(store: Store, held: contextlib.ExitStack, *, every: bool) -> list[Path]:
    """Scratch folders that are old (or all) and that no living run holds; ``held`` takes their locks."""
    found = []
    for path in sorted((store.root / "scratch").glob("*/*")):
        old = every or time.time() - path.stat().st_mtime >= _SCRATCH_AGE
        if old and held.enter_context(locks.try_hold(store.lock_path(path.parent.name, path.name))):
            found.append(path)
    return found
