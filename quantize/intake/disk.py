"""Room on the disk, asked before the work instead of found out in its middle."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.units import format_size

#: room that must stay beyond what is written: manifests, logs, other programs
RESERVE_BYTES = 64 << 20
#: what the user can cause and change: rights, read-only disks, names of the wrong kind, failing disks
_UNUSABLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EIO,
        errno.ENOENT,
        errno.EEXIST,
        errno.ENXIO,
    }
)


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write on the disk of ``path`` (or its nearest existing parent)."""
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 (unlike Path's it never raises)
        path = path.parent
    return shutil.disk_usage(path).free


def _full(path: Path, what: str, needed: int | None, free: int) -> ForgeError:
    numbers: dict[str, object] = {"free_bytes": free, "folder": str(path)}
    message = f"too little disk space for {what}: {format_size(free)} free"
    if needed is not None:
        numbers["needed_bytes"] = needed
        message = f"too little disk space for {what}: {format_size(needed)} needed, {format_size(free)} free"
    return EnvironmentLacks(
        "TF-SRC-012",
        message,
        asked=what,
        numbers=numbers,
        remedies=[
            "free space: `trtforge artifacts gc` removes artifacts that no recipe needs",
            "put the store on a larger disk with --store or TRTFORGE_HOME (downloads: TRTFORGE_CACHE)",
            "raise the quota or the limit on file sizes (ulimit -f) when the disk itself has room",
        ],
    )


def require_space(path: Path, nbytes: int, what: str) -> None:
    """``TF-SRC-012`` when the disk of ``path`` has no room for ``nbytes`` and a reserve."""
    needed, free = nbytes + RESERVE_BYTES, free_bytes(path)
    if free < needed:
        raise _full(path, what, needed, free)


@contextmanager
def system_answers(path: Path, what: str) -> Iterator[None]:
    """Turn the system's "no space left" into ``TF-SRC-012`` and its "not allowed" and the like into ``TF-SRC-031``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _full(path, what, None, free_bytes(path)) from None
        if error.errno not in _UNUSABLE:
            raise
        raise ForgeError(
            "TF-SRC-031",
            f"{what}: the system refuses {error.filename or path}: {error.strerror}",
            asked=str(error.filename or path),
            numbers={"errno": error.errno},
            remedies=["give this user access to it (ls -l shows who has it)", "use a copy in a folder of your own"],
        ) from None
