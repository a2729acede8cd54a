"""Which artifacts the last run of each recipe used, and which artifacts runs in progress use.

``runs/<name>.json`` keeps, for every stage of the last run of the recipe of that name, the key and all
ingredients, so that ``explain`` can say what changed even after the artifact itself was collected.
``active/<id>.json`` lists what a living run uses; its lock is free as soon as the process is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtforge.ground.files import read_json, write_json_atomic
from trtforge.store import locks
from trtforge.store.artifact import Artifact
from trtforge.store.manifest import now
from trtforge.store.shape import record_fault
from trtforge.store.store import KEY_DIGITS, Store, is_disk_full


@dataclass
class StageRecord:
    """One stage of a recorded run."""

    key: str
    ingredients: dict[str, Any]
    status: str


@dataclass
class RunRecord:
    """The last run of the recipe called ``name``."""

    name: str
    recipe: str
    updated: str = ""
    status: str = "running"
    log: str = ""
    stages: dict[str, StageRecord] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as it is kept on disk."""
        return {"version": 1, **asdict(self)}


def record_path(store: Store, name: str) -> Path:
    """Where the record of the recipe called ``name`` lies."""
    return store.root / "runs" / f"{name}.json"


def load_record(store: Store, name: str) -> RunRecord | None:
    """The last run of the recipe called ``name``; ``None`` when there was none (or its record is damaged)."""
    value = read_json(record_path(store, name))
    return None if value is None or record_fault(value) else _record(value)


def _record(value: Mapping[str, Any]) -> RunRecord:
    stages = {
        stage: StageRecord(entry["key"], dict(entry["ingredients"]), entry["status"])
        for stage, entry in value["stages"].items()
    }
    return RunRecord(value["name"], value["recipe"], value["updated"], value["status"], value["log"], stages)


def save_record(store: Store, record: RunRecord) -> None:
    """Write a record; the file changes in one step."""
    record.updated = now()
    write_json_atomic(record_path(store, record.name), record.to_json(), durable=store.durable)


def all_records(store: Store) -> list[RunRecord]:
    """The last run of every recipe that ran on this store, by name."""
    records = (load_record(store, path.stem) for path in sorted((store.root / "runs").glob("*.json")))
    return [record for record in records if record is not None]


def forget(store: Store, name: str) -> bool:
    """Drop the record of a recipe, so that its artifacts may be collected; returns whether there was one."""
    path = record_path(store, name)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


class ActiveRun:
    """The artifacts that a run in progress uses; made by :func:`active_run`."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._used: set[str] = set()

    def use(self, artifact: Artifact) -> bool:
        """Protect an artifact for the rest of the run; False when it was collected meanwhile."""
        with locks.hold(gc_lock(self._store), note_holder=False):
            if not artifact.path.is_dir():
                return False
            self._used.add(f"{artifact.stage}/{artifact.key[:KEY_DIGITS]}")
            # on a full disk a run that finds everything still ends; its last record protects what it uses
            with _unless_full():
                write_json_atomic(self._path, {"pid": os.getpid(), "artifacts": sorted(self._used)}, durable=False)
        self._store.touch(artifact)
        return True


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def gc_lock(store: Store) -> Path:
    """The lock that keeps collecting garbage and starting to use an artifact apart."""
    return store.root / "locks" / "gc.lock"


@contextlib.contextmanager
def active_run(store: Store) -> Iterator[ActiveRun]:
    """Register a run in progress for the block."""
    path = store.root / "active" / f"{os.getpid()}-{secrets.token_hex(4)}.json"
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        with _unless_full():
            held.enter_context(locks.hold(lock, note_holder=False))
        try:
            yield ActiveRun(store, path)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                lock.unlink(missing_ok=True)  # nobody waits for this lock: its name is used once


def active_artifacts(store: Store) -> set[str]:
    """``stage/key[:16]`` of everything that living runs use."""
    used: set[str] = set()
    for path in (store.root / "active").glob("*.json"):
        with locks.try_hold(path.with_suffix(".lock")) as held:
            if held:
                continue  # its process is gone; Store.sweep removes the record
        value = read_json(path)
        if isinstance(value, Mapping):
            used.update(str(name) for name in _names(value.get("artifacts")))
    return used


def _names(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
