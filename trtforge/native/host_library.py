"""Where the plugins' host library lies in this installation, and which build it is."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from pathlib import Path

from trtforge.ground.hashing import hash_file
from trtforge.ground.own_packages import FOLDER, root
from trtforge.ground.shared_object import open_library

HOST_LIBRARY = "libtrtforge_host.so"
#: names another file
VARIABLE = "TRTFORGE_HOST_LIBRARY"


def folders() -> tuple[Path, ...]:
    """Where it may lie: beside its loader (wheels), or where an editable install of a checkout put it."""
    beside = Path(root(), "plugins", "host")
    try:
        installed = importlib.metadata.distribution("trtforge").locate_file(f"trtforge/{FOLDER}/plugins/host")
    except importlib.metadata.PackageNotFoundError:
        return (beside,)
    return tuple(dict.fromkeys((beside, Path(str(installed)))))


def host_library_path() -> Path | None:
    """The library; None when it has not been built, or is not where :data:`VARIABLE` says."""
    named = os.environ.get(VARIABLE)
    candidates = [Path(named)] if named else [folder / HOST_LIBRARY for folder in folders()]
    return next((path for path in candidates if path.is_file()), None)


@functools.cache
def _hash_at(path: Path, size: int, mtime_ns: int) -> str:
    return hash_file(path)


def host_library_hash() -> str | None:
    """SHA-256 of the plugins' host library; ``None`` when it is not built."""
    path = host_library_path()
    if path is None:
        return None
    status = path.stat()
    return _hash_at(path, status.st_size, status.st_mtime_ns)


def host_library_abi() -> int | None:
    """The ABI that the library itself states; ``None`` where none is built or it does not load."""
    path = host_library_path()
    if path is None:
        return None
    try:
        return int(open_library(path).trtforge_host_abi())
    except (OSError, AttributeError):
        return None
