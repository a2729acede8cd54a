"""Where the plugins' host library lies in this installation, and which build it is."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path

from trtforge.ground.hashing import hash_file
from trtforge.ground.shared_object import open_library

HOST_LIBRARY = "libtrtforge_host.so"


def host_library_path() -> Path | None:
    """Where the plugins' host library lies in this installation; ``None`` when it is not built.

    ``TRTFORGE_HOST_LIBRARY`` names another file, as it does for the loader.
    """
    named = os.environ.get("TRTFORGE_HOST_LIBRARY")
    if named:
        return Path(named) if Path(named).is_file() else None
    try:
        spec = importlib.util.find_spec("plugins.host")
    except ImportError:
        return None
    locations = spec.submodule_search_locations if spec is not None else None
    candidates = (Path(location) / HOST_LIBRARY for location in locations or ())
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
