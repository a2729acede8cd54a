"""Hashes: canonical JSON for keys, chunked SHA-256 for files.

Policy: a hash over structured data is SHA-256 over one canonical JSON text (sorted keys, no spaces,
no NaN), so that equal data has equal keys in every process and Python version.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

#: bytes read at once: large enough for full disk speed, small enough for a lively progress bar
CHUNK = 4 << 20
#: files that are hashed at once; hashlib lets go of the interpreter, and one reader seldom fills a disk's bandwidth
THREADS = min(4, os.cpu_count() or 1)
#: below so many bytes starting threads takes longer than they save
_WORTH_THREADS = 32 << 20


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON form: {value!r}")


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``; ``TypeError`` or ``ValueError`` on what JSON cannot hold (NaN, objects)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)


def json_safe(value: Any) -> Any:
    """``value`` with infinities and NaN as the texts ``inf``, ``-inf`` and ``nan``, which JSON has no numbers for.

    A figure that went wrong must be shown, not end a run that has its gate to report it.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    return value


def as_read_back(value: Any) -> Any:
    """``value``, which :func:`json_safe` made, as a JSON file gives it back: keys are texts; so its hash stays."""
    return json.loads(json.dumps(value, allow_nan=False))


def hash_json(value: Any) -> str:
    """SHA-256 (64 hexadecimal digits) over the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def hash_bytes(data: bytes) -> str:
    """SHA-256 (64 hexadecimal digits) of ``data``."""
    return hashlib.sha256(data).hexdigest()


def hash_file(path: Path, advance: Callable[[float], None] | None = None) -> str:
    """SHA-256 of a file's content, read in chunks; ``advance`` receives the bytes of every chunk."""
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            if advance is not None:
                advance(float(count))
    return digest.hexdigest()


class HashMemo:
    """SHA-256 of files that were read before, for as long as the file system says that nobody touched them.

    A file is known by its inode, size and both times, that of the last change among them, which nobody sets back. So
    content that several names share is read once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def file(self, path: Path, advance: Callable[[float], None] | None = None) -> str:
        """The hash of a file, read where it is not known; ``advance`` receives its bytes either way."""
        before = path.stat()
        known = self._known.get(_state(before))
        if known is None:
            known = hash_file(path, advance)
            if _state(path.stat()) == _state(before):
                self._known[_state(before)] = known
        elif advance is not None:
            advance(float(before.st_size))
        return known

    def renew(self, before: os.stat_result, path: Path) -> None:
        """``path`` got another name or mode by this process since ``before``: its content is still what it was."""
        now = path.stat()
        same = (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns)
        if (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns) == same and _state(before) in self._known:
            self._known[_state(now)] = self._known[_state(before)]

    def clear(self) -> None:
        """Forget everything: what is asked for next is read."""
        self._known.clear()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def hash_files(
    files: Mapping[str, Path], advance: Callable[[float], None] | None = None, memo: HashMemo | None = None
) -> dict[str, str | OSError]:
    """SHA-256 of several files by the mapping's names, :data:`THREADS` at a time; an ``OSError`` for one that fails.

    ``advance`` receives the bytes of every chunk, from one thread at a time; ``memo`` knows files that need no reading.
    """
    sizes = {name: _size(path) for name, path in files.items()}
    stop, turn = threading.Event(), threading.Lock()

    def report(count: float) -> None:
        if stop.is_set():
            raise InterruptedError
        if advance is not None:
            with turn:
                advance(count)

    def one(name: str) -> str | OSError:
        try:
            return hash_file(files[name], report) if memo is None else memo.file(files[name], report)
        except OSError as error:
            return error

    # the largest first, so that the last to end is a small one
    order = sorted(files, key=lambda name: sizes[name], reverse=True)
    if THREADS == 1 or len(order) < 2 or sum(sizes.values()) < _WORTH_THREADS:
        return {name: one(name) for name in order}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        try:
            return dict(zip(order, pool.map(one, order), strict=True))
        except BaseException:
            stop.set()  # Ctrl-C need not wait for the end of a file of many gigabytes
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
