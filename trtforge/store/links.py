"""The links under which bundles are known outside the store: what they point at is kept from collection.

``links/<hash of the link's path>.json`` names one link. A link that was removed, or that points elsewhere by
now, protects nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from trtforge.ground.files import read_json, write_json_atomic
from trtforge.store.store import KEY_DIGITS, Store


def remember_link(store: Store, link: Path) -> None:
    """Keep what ``link`` points at from collection for as long as it does so."""
    path = os.fspath(link.absolute())
    name = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:KEY_DIGITS]
    record = store.root / "links" / f"{name}.json"
    if read_json(record) != {"link": path}:
        write_json_atomic(record, {"link": path}, durable=False)


def linked_artifacts(store: Store) -> set[str]:
    """``stage/key[:16]`` of everything in the store that a remembered link points at."""
    used: set[str] = set()
    for record in (store.root / "links").glob("*.json"):
        value = read_json(record)
        link = Path(str(value["link"])) if isinstance(value, Mapping) and "link" in value else None
        if link is None or not link.is_symlink():
            with contextlib.suppress(OSError):  # a read-only store, or a folder of that name
                record.unlink()
            continue
        target = link.resolve()
        if target == store.artifact_path(target.parent.name, target.name).resolve():
            used.add(f"{target.parent.name}/{target.name}")
    return used
