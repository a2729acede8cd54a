"""File-system work that must not be done carelessly: durable writes, copies, removal, free space.

Policy: what a later run may trust is written to a temporary name, flushed to the disk and renamed;
copies share blocks where the file system can (reflink) and are never hard links: whoever copies may write to the copy,
and ONNX's checker refuses hard links. The store links what it has sealed (:mod:`trtforge.store.objects`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trtforge.ground.json_file import read_json_file

_FICLONE = 0x40049409  # linux/fs.h: share the blocks of one file with another
_COPY_CHUNK = 8 << 20


def fsync_path(path: Path) -> None:
    """Flush a file or a directory to the disk; file systems without support for it are let be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):
            raise
    finally:
        os.close(descriptor)


def write_text_atomic(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace ``path`` by a file holding ``text``; readers see the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_path(path.parent)


def write_json_atomic(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by the indented JSON of ``value`` (see :func:`write_text_atomic`)."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a path that is no UTF-8: as JSON's escapes it is read back as it was
        text = json.dumps(value, indent=2)
    write_text_atomic(path, text + "\n", durable=durable)


def read_json(path: Path) -> Any | None:
    """The JSON value in ``path``; ``None`` when it is missing or not JSON (a damaged record is no record)."""
    try:
        return read_json_file(path)
    except (OSError, ValueError):
        return None


def remove_tree(path: Path) -> None:
    """Remove a directory (or file) completely, read-only entries included; absent is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    if not path.is_dir():
        return
    for directory, _, _ in os.walk(path):
        # a directory without write permission keeps its entries
        with contextlib.suppress(OSError):
            Path(directory).chmod(0o755)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        shutil.rmtree(path)  # second pass reports what stands in the way


def walk_files(root: Path, *, lenient: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Every entry below ``root`` that is no directory, as (posix path relative to root, lstat), sorted by path.

    Directories come too when they are empty, so that a published tree can be told apart from one that lost them.

    Args:
        lenient: leave out what cannot be read, or is gone by the time that it is looked at.

    Raises:
        OSError: a directory cannot be read (not when ``lenient``).
    """
    pending: list[tuple[str, Path]] = [("", root)]
    found: list[tuple[str, os.stat_result]] = []
    while pending:
        prefix, directory = pending.pop()
        empty = True
        with contextlib.suppress(*((OSError,) if lenient else ())):
            with os.scandir(directory) as entries:
                for entry in entries:
                    empty = False
                    name = f"{prefix}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((f"{name}/", Path(entry.path)))
                    else:
                        found.append((name, entry.stat(follow_symlinks=False)))
            if empty and prefix:
                found.append((prefix.rstrip("/"), directory.lstat()))
    return iter(sorted(found))


def tree_bytes(root: Path) -> int:
    """Bytes of all regular files below ``root`` (0 when it does not exist)."""
    if not root.is_dir():
        return 0
    return sum(status.st_size for _, status in walk_files(root, lenient=True) if stat.S_ISREG(status.st_mode))


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the file system of ``path`` (its nearest existing parent)."""
    return shutil.disk_usage(nearest_existing(path)).free


def nearest_existing(path: Path) -> Path:
    """``path``, or the lowest folder above it that is there."""
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 (unlike Path's it never raises)
        path = path.parent
    return path


def shares_blocks(folder: Path) -> bool:
    """Whether copies in a folder share blocks with the original (btrfs, xfs); tried out, in a writable folder."""
    import fcntl

    with tempfile.TemporaryFile(dir=folder) as one, tempfile.TemporaryFile(dir=folder) as other:
        one.write(bytes(4096))
        one.flush()
        try:
            fcntl.ioctl(other.fileno(), _FICLONE, one.fileno())
        except OSError:
            return False
    return True


def read_only_binds(folder: Path) -> bool:
    """Whether a file without write permission is safe from this user; tried out: root, for one, may write to it."""
    with tempfile.NamedTemporaryFile(dir=folder) as trial:
        path = Path(trial.name)
        path.chmod(0o444)
        return not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def copy_file(source: Path, target: Path, advance: Callable[[float], None] | None = None) -> None:
    """Copy content (not mode or times): by reflink where possible, else by chunks.

    ``advance`` receives the bytes written as they are written.
    """
    import fcntl

    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            # read and write rather than copy_file_range: the latter fails on some overlay and network file systems
            while chunk := reader.read(_COPY_CHUNK):
                writer.write(chunk)
                if advance is not None:
                    advance(float(len(chunk)))
        else:
            if advance is not None:
                advance(float(size))


def copy_tree(
    source: Path,
    target: Path,
    advance: Callable[[float], None] | None = None,
    *,
    exclude: tuple[str, ...] = (),
) -> int:
    """Copy a directory's content into ``target`` (made when missing); returns the bytes copied.

    ``exclude`` names top-level entries to leave out (an artifact's ``manifest.json`` and ``COMPLETE``).
    Symbolic links are copied as links.
    """
    target.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, status in walk_files(source):
        if name.split("/", 1)[0] in exclude:
            continue
        destination = target / name
        if stat.S_ISDIR(status.st_mode):
            destination.mkdir(parents=True, exist_ok=True)
            continue
        destination.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(status.st_mode):
            destination.symlink_to((source / name).readlink())
            continue
        copy_file(source / name, destination, advance)
        total += status.st_size
    return total
