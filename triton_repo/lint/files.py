"""Reads files of a repository that nobody vouches for: bounded, regular files only, links kept inside.

Every way that a file can be unreadable is a :class:`Unreadable` with a reason; nothing here blocks on a FIFO
or a device, and nothing outside the repository is opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trtforge.ground.json_file import kind_of

#: the largest configuration, model.yaml or model.py that is read; NVIDIA's own are below 100 KiB
MAX_BYTES = 4 << 20
#: entries of one folder that are listed
MAX_ENTRIES = 20_000


class Unreadable(Exception):
    """A file or folder that cannot be read, and why."""

    def __init__(self, reason: str, *, outside: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.outside = outside


def inside(path: Path, root: Path) -> Path:
    """``path`` with its links resolved.

    Args:
        path: a file or folder below ``root``, links allowed on the way.
        root: the repository, already resolved.

    Raises:
        Unreadable: a loop of links, or a link that leaves ``root`` (``outside`` is then set).
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        raise Unreadable("it is a link to nothing" if path.is_symlink() else "it does not exist") from None
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    if real != root and root not in real.parents:
        raise Unreadable(f"it is a link that leaves the repository ({real})", outside=True)
    return real


def read_text(path: Path, root: Path) -> str:
    """The UTF-8 text of a regular file below ``root``, without a byte order mark.

    Raises:
        Unreadable: missing, no regular file, larger than :data:`MAX_BYTES`, binary, not UTF-8, no permission.
    """
    data = read_bytes(path, root)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(not_utf8(error)) from None


def not_utf8(error: UnicodeDecodeError) -> str:
    """Why bytes are no UTF-8 text."""
    return f"it is not UTF-8 (byte {error.start})"


def read_bytes(path: Path, root: Path) -> bytes:
    """The bytes of a regular file of text below ``root``, in whatever encoding.

    Raises:
        Unreadable: missing, no regular file, larger than :data:`MAX_BYTES`, binary, no permission.
    """
    real = inside(path, root)
    try:
        # O_NONBLOCK: opening a FIFO without a writer would wait for ever
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"it is {kind_of(status.st_mode)}, not a file")
        if status.st_size > MAX_BYTES:
            raise Unreadable(f"it has {status.st_size} bytes; at most {MAX_BYTES} are read")
        data = b""
        while len(data) <= MAX_BYTES and (piece := os.read(handle, MAX_BYTES + 1 - len(data))):
            data += piece
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    finally:
        os.close(handle)
    if len(data) > MAX_BYTES:
        raise Unreadable(f"it grew past {MAX_BYTES} bytes while it was read")
    if b"\0" in data:
        raise Unreadable(f"it is binary (a NUL byte at offset {data.index(0)})")
    return data


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name.

    Raises:
        Unreadable: no permission, no folder, or more than :data:`MAX_ENTRIES` entries.
    """
    try:
        with os.scandir(folder) as listing:
            found = []
            for entry in listing:
                found.append(entry)
                if len(found) > MAX_ENTRIES:
                    raise Unreadable(f"it has more than {MAX_ENTRIES} entries")
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    return sorted(found, key=lambda entry: entry.name)


def there(path: Path) -> bool:
    """Whether a name exists, a link to anything among them; False where that cannot be told."""
    try:
        path.lstat()
    except (OSError, ValueError):  # no permission, or a name that no file can have
        return False
    return True


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
