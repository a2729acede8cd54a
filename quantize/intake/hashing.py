"""SHA-256 of files, remembered by size, modification time and inode.

Policy: a remembered hash is used only for a file whose (size, mtime_ns, inode) are unchanged, and it is
remembered only when the file was last modified well before it was hashed: a write within the clock's
granularity could otherwise keep all three and change the content.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 22
_SETTLED_SECONDS = 2.0


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hexadecimal SHA-256 of ``path``; ``on_bytes`` is called with the length of each piece read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    return digest.hexdigest()


def folder_digest(hashes: dict[str, str]) -> str:
    """One SHA-256 for a set of files: of the lines ``<sha256>  <name>`` in name order (the form of sha256sum)."""
    lines = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def cached_hashes(
    directory: Path, names: Sequence[str], cache_dir: Path | None, on_bytes: Callable[[int], None] | None = None
) -> dict[str, str]:
    """SHA-256 of ``names`` below ``directory``, read only where the cache does not know the file as it is now."""
    store = None if cache_dir is None else _store(directory, cache_dir)
    known = _remembered(store)
    result: dict[str, str] = {}
    fresh: dict[str, list[object]] = {}
    for name in names:
        path = directory / name
        stat = path.stat()
        stamp = _stamp(stat)
        if (remembered := _hash_of(known.get(name), stamp)) is not None:
            result[name] = remembered
        else:
            started = time.time()
            result[name] = sha256_file(path, on_bytes)
            if started - stat.st_mtime < _SETTLED_SECONDS:
                continue
        fresh[name] = [*stamp, result[name]]
    if store is not None and any(known.get(name) != entry for name, entry in fresh.items()):
        with suppress(OSError):  # a cache that cannot be written only costs time
            _write_atomically(store, json.dumps({**known, **fresh}, sort_keys=True))
    return result


def unread_bytes(directory: Path, names: Sequence[str], cache_dir: Path) -> int:
    """Bytes of ``names`` that :func:`cached_hashes` would read: the cache does not know these files as they are now."""
    known = _remembered(_store(directory, cache_dir))
    sizes = {name: (directory / name).stat() for name in names}
    return sum(stat.st_size for name, stat in sizes.items() if _hash_of(known.get(name), _stamp(stat)) is None)


def _store(directory: Path, cache_dir: Path) -> Path:
    return cache_dir / "hashes" / f"{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:32]}.json"


def _remembered(store: Path | None) -> dict[str, list[object]]:
    with suppress(OSError, ValueError):
        loaded = json.loads(store.read_text(encoding="utf-8")) if store is not None else None
        return loaded if isinstance(loaded, dict) else {}
    return {}


def _stamp(stat: os.stat_result) -> list[object]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _hash_of(entry: object, stamp: list[object]) -> str | None:
    """The hash in an entry of the cache, where the entry is of the file with that stamp."""
    if isinstance(entry, list) and entry[:3] == stamp and len(entry) == 4 and isinstance(entry[3], str):
        return entry[3]
    return None


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
