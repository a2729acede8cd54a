"""Where the plugins' host library lies in this installation, and which build it is."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from trtforge.ground.hashing import HashMemo
from trtforge.ground.own_packages import FOLDER, root
from trtforge.ground.shared_object import open_library

HOST_LIBRARY = "libtrtforge_host.so"
#: names another file
VARIABLE = "TRTFORGE_HOST_LIBRARY"
_HASHES = HashMemo()


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


def host_library_hash() -> str | None:
    """SHA-256 of the plugins' host library; ``None`` when it is not built."""
    path = host_library_path()
    return None if path is None else _HASHES.file(path)


def host_library_abi() -> int | None:
    """The ABI that the library itself states; ``None`` where none is built or it does not load."""
    path = host_library_path()
    if path is None:
        return None
    try:
        return int(open_library(path).trtforge_host_abi())
    except (OSError, AttributeError):
        return None
