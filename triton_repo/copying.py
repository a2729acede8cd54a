"""Copies a repository, or part of it, beside itself: links inside stay links, links that leave it are made absolute."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from triton_repo.lint.files import Unreadable, entries, inside
from triton_repo.upgrade_report import Upgrade
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path


def copy_repository(root: Path, target: Path, result: Upgrade, without: Collection[str] = ()) -> None:
    """Copy every file of ``root`` below ``target``, but for the models ``without``.

    Raises:
        ForgeError: TF-TRI-242 for a file that cannot be copied.
    """
    root = real_path(root)
    folders = [(root, target)]
    while folders:
        source, place = folders.pop()
        place.mkdir(exist_ok=True)
        try:
            listing = entries(source)
        except Unreadable as error:
            raise _uncopied(source, error.reason) from None
        for entry in listing:
            path, new = source / entry.name, place / entry.name
            if source == root and entry.name in without:
                continue
            if entry.is_symlink():
                _copy_link(path, new, root, result)
            elif entry.is_dir(follow_symlinks=False):
                folders.append((path, new))
            elif entry.is_file(follow_symlinks=False):
                try:
                    shutil.copy2(path, new, follow_symlinks=False)
                except OSError as error:
                    raise _uncopied(path, (error.strerror or str(error)).lower()) from None
            else:
                raise _uncopied(path, f"it is no file ({stat.filemode(path.lstat().st_mode)})")


def _copy_link(path: Path, new: Path, root: Path, result: Upgrade) -> None:
    stated = str(path.readlink())
    try:
        inside(path, root)
        absolute = Path(stated).is_absolute()
    except Unreadable as error:
        absolute = error.outside
    if absolute and not Path(stated).is_absolute():
        stated = os.path.normpath(path.parent / stated)
        what = f"link {path.relative_to(root)}"
        result.say(path.relative_to(root).parts[0], "kept", what, f"it leaves the repository: {stated}")
    new.symlink_to(stated)


def _uncopied(path: Path, reason: str) -> ForgeError:
    return ForgeError(
        "TF-TRI-242",
        f"{path} cannot be copied",
        asked=str(path),
        why=reason,
        remedies=["make it a readable file, or move it out of the repository"],
    )
