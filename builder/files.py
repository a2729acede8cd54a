"""Copies of checkpoint files, cheap where the file system can share blocks.

Policy: results hold real files. ONNX refuses external data behind symbolic and hard links, so links
are followed and copied; on file systems with reflinks (btrfs, xfs) a copy costs no space.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from trtforge.ground.progress import Progress, SilentProgress

#: files that a store or an earlier stage wrote about a directory, never part of its content
BOOKKEEPING = frozenset({"manifest.json", "COMPLETE"})
_FICLONE = 0x40049409


def content_files(directory: Path, *, exclude: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The regular, visible files of ``directory`` itself, sorted by name, without bookkeeping and ``exclude``."""
    for path in sorted(Path(directory).iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in BOOKKEEPING | exclude:
            yield path


def copy_file(source: Path, target: Path) -> None:
    """Copy one file (contents only) by reflink when possible; the target appears complete or not at all."""
    temporary = target.with_name(f"{target.name}.partial")
    with source.open("rb") as reader, temporary.open("wb") as writer:
        cloned = False
        with contextlib.suppress(OSError):
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
            cloned = True
        if not cloned:
            shutil.copyfileobj(reader, writer, 4 * 2**20)
    temporary.replace(target)


def copy_directory(
    source: Path, target: Path, *, exclude: frozenset[str] = frozenset(), progress: Progress | None = None
) -> list[str]:
    """Copy the content files of ``source`` into ``target``; returns their names."""
    progress = progress or SilentProgress()
    target.mkdir(parents=True, exist_ok=True)
    files = list(content_files(source, exclude=exclude))
    progress.start("copying weights and tokenizer", float(sum(path.stat().st_size for path in files)))
    for path in files:
        copy_file(path, target / path.name)
        progress.advance(float(path.stat().st_size))
    return [path.name for path in files]
