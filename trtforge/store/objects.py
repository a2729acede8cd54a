"""Large files of artifacts are stored once: one inode for each content, under every name that artifacts have for it.

Policy. ``objects/<first two digits>/<SHA-256>`` is one more name (a hard link) of a file that an artifact holds, by
which the next artifact with the same content finds it: publishing replaces the copy that a stage wrote by a link.
Nothing reads an artifact through ``objects/``: an artifact is a folder of regular files, is copied, packed and
verified as one, and stays whole when ``objects/`` is lost. An object that no artifact has a name for is removed by
collection, which looks at the number of links and needs no records; a run that is killed leaves at most such an
object.

A shared inode must not be written to. Its write permission is taken, which stops whoever opens it for writing; what
replaces a file (editors, ``sed -i``, ``rsync``, ``cp --remove-destination``) changes one name only. Where
permission stops nobody (root, some network file systems), what people work in shares nothing: a stage says so of
its artifact (``handed_out``), and its files stay copies. Whatever gets through, or rots on the disk, is met like
any other damage: by times when an artifact is looked up, by hash before it is used. An object is hashed before it
is linked again, unless this run did and nobody touched it since, so that damage does not spread to what is
published after it.

Where copies share blocks anyway (reflinks: btrfs, xfs) nothing is linked: a stage's copy costs no space and shares
no inode. Where there are no hard links, or no more of one inode, the copy stays.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trtforge.ground.files import read_only_binds, shares_blocks, walk_files
from trtforge.ground.hashing import HashMemo
from trtforge.store.steps import step

#: smaller files are not worth an inode that several artifacts depend on
SHARED_FROM = 1 << 20
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_EXECUTE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


class Objects:
    """The shared files of one store.

    Args:
        root: the store's.
        hashes: what this process hashed.
    """

    def __init__(self, root: Path, hashes: HashMemo) -> None:
        self._root = root
        self._hashes = hashes

    def path(self, digest: str) -> Path:
        """Where the content of that SHA-256 has its name among the objects."""
        return self._root / "objects" / digest[:2] / digest

    @functools.cached_property
    def _links(self) -> bool:
        """Whether this store shares by links at all."""
        return not shares_blocks(self._root / "tmp")

    @functools.cached_property
    def _safe(self) -> bool:
        return read_only_binds(self._root / "tmp")

    def share(self, directory: Path, files: Iterable[Mapping[str, Any]], *, handed_out: bool) -> None:
        """Replace the large ones of an unpublished directory's listed files by links to the same content.

        Killed at any moment, the directory holds the same content under the same names.

        Args:
            directory: lies in the store's ``tmp``.
            files: entries of its manifest.
            handed_out: people work in it.
        """
        large = [entry for entry in files if entry["size"] >= SHARED_FROM]
        if not large or not self._links or (handed_out and not self._safe):
            return
        for entry in large:
            # not fatal: without a link the directory keeps its copy (no hard links here, too many, not ours)
            with contextlib.suppress(OSError):
                self._share(directory / entry["path"], entry["sha256"], directory.with_name(f"{directory.name}-link"))

    def _share(self, path: Path, digest: str, temporary: Path) -> None:
        known = self.path(digest)
        known.parent.mkdir(parents=True, exist_ok=True)
        mine = path.lstat()
        for _ in range(3):  # another process may take an object away between two steps
            if not self._is_sound(known, digest):
                known.unlink(missing_ok=True)
                path.chmod(stat.S_IMODE(mine.st_mode) & ~_WRITE)
                try:
                    known.hardlink_to(path)
                except FileExistsError:
                    continue
                self._hashes.renew(mine, path)
                step("share.kept")
                return
            theirs = known.lstat()
            if theirs.st_ino == mine.st_ino or (theirs.st_mode ^ mine.st_mode) & _EXECUTE:
                return
            try:
                temporary.hardlink_to(known)
                step("share.linked")
                temporary.replace(path)
            except FileNotFoundError:
                continue
            finally:
                temporary.unlink(missing_ok=True)
            self._hashes.renew(theirs, path)
            step("share.replaced")
            return

    def _is_sound(self, path: Path, digest: str) -> bool:
        """Whether an object is there, a regular file that nobody may write to, with the content of its name."""
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_mode & _WRITE:
                return False
            return self._hashes.file(path) == digest
        except OSError:
            return False

    def _all(self) -> list[tuple[Path, os.stat_result]]:
        folder = self._root / "objects"
        if not folder.is_dir():
            return []
        return [
            (folder / name, status)
            for name, status in walk_files(folder, lenient=True)
            if not stat.S_ISDIR(status.st_mode)
        ]

    def bytes_freed(self, trees: Iterable[Path]) -> int:
        """Bytes of disk that removing directories (and then the objects that nobody names) gives back."""
        names: Counter[tuple[int, int]] = Counter()
        found: dict[tuple[int, int], os.stat_result] = {}
        for tree in trees:
            for _, status in walk_files(tree, lenient=True):
                if stat.S_ISREG(status.st_mode):
                    names[status.st_dev, status.st_ino] += 1
                    found[status.st_dev, status.st_ino] = status
        for _, status in self._all():
            names[status.st_dev, status.st_ino] += 1
            found[status.st_dev, status.st_ino] = status
        return sum(status.st_size for inode, status in found.items() if names[inode] >= status.st_nlink)

    def collect(self) -> int:
        """Remove the objects that no artifact has a name for; how many there were.

        One that a run links to at this moment may go too: then its content is looked up in vain once, and kept anew.
        """
        removed = 0
        for path, status in self._all():
            if status.st_nlink == 1 or not stat.S_ISREG(status.st_mode):
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed += 1
        return removed
