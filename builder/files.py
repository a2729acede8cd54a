"""Copies of checkpoint files, cheap where the file system can share blocks.

Policy: results hold real files. ONNX refuses external data behind symbolic and hard links, so links
are followed and copied; on file systems with reflinks (btrfs, xfs) a copy costs no space.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtforge.ground import files
from trtforge.ground.progress import Progress, SilentProgress

#: files that a store or an earlier stage wrote about a directory, never part of its content
BOOKKEEPING = frozenset({"manifest.json", "COMPLETE"})


def content_files(directory: Path, *, exclude: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The regular, visible files of ``directory`` itself, sorted by name, without bookkeeping and ``exclude``."""
    for path in sorted(Path(directory).iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in BOOKKEEPING | exclude:
            yield path


def copy_file(source: Path, target: Path) -> None:
    """Copy one file (contents only) by reflink when possible; the target appears complete or not at all."""
    temporary = target.with_name(f"{target.name}.partial")
    files.copy_file(source, temporary)
    temporary.replace(target)


def copy_directory(
    source: Path, target: Path, *, exclude: frozenset[str] = frozenset(), progress: Progress | None = None
) -> list[str]:
    """Copy the content files of ``source`` into ``target``; returns their names."""
    progress = progress or SilentProgress()
    target.mkdir(parents=True, exist_ok=True)
    chosen = list(content_files(source, exclude=exclude))
    progress.start("copying weights and tokenizer", float(sum(path.stat().st_size for path in chosen)))
    for path in chosen:
        copy_file(path, target / path.name)
        progress.advance(float(path.stat().st_size))
    return [path.name for path in chosen]
