"""Writes a repository as a whole: a folder beside the target, moved into place when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from trtforge.ground.errors import ForgeError


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A folder to write into; it becomes ``out`` when the block ends well and vanishes when it does not.

    A link to an empty folder is followed: what it leads to becomes the repository.

    Raises:
        ForgeError: TF-TRI-003 when ``out`` is neither new nor an empty folder, or cannot be made.
    """
    if out.is_symlink() and not out.exists():
        raise _refused(out, "it is a link to nothing, and what it names is not made for it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise _refused(out, "there are files in it" if out.is_dir() else "there is a file of that name")
    place = out.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=f".{place.name[:100]}-", dir=place.parent))
    except OSError as error:
        raise _refused(out, f"it cannot be made: {error.strerror or error}") from None
    try:
        folder.chmod(0o755)
        yield folder
        if place.exists():
            place.rmdir()
        folder.rename(place)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _refused(out: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-TRI-003",
        "the folder to write is not empty or new",
        asked=str(out),
        why=why,
        remedies=["name an empty folder, or a new one below a folder that you may write to"],
    )


def from_model(folder: Path, out: Path, model: str) -> str:
    """``folder`` as a model of the repository ``out`` sees it: Triton starts a model in its own folder."""
    return os.path.relpath(folder.resolve(), (out / model).resolve())
