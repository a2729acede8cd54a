"""Writes a repository as a whole: a folder beside the target, moved into place when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from trtforge.errors import ForgeError


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A folder to write into; it becomes ``out`` when the block ends well and vanishes when it does not.

    Raises:
        ForgeError: TF-TRI-003 when ``out`` is neither new nor an empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ForgeError(
            "TF-TRI-003",
            "the repository's folder is not empty",
            asked=str(out),
            remedies=["name an empty folder"],
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        folder.chmod(0o755)
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
