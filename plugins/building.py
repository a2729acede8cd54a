"""What native builds share: the plugin cache, and compilers that are called.

The cache (``TRTFORGE_PLUGIN_CACHE``, else ``$XDG_CACHE_HOME/trtforge/plugins``) has a folder for every key. A folder
appears only when everything is there; one that lost or damaged a file since counts as none and is built anew. A build
that was killed leaves its scratch behind, which the next one of that key removes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.processes import ended_with_us
from trtforge.ground.shared_object import check_whole
from trtforge.native.cache import VARIABLE

REPORT = "report.json"


def is_whole(folder: Path, files: Sequence[str]) -> bool:
    """Whether a build lies in ``folder`` with its report and all its files, none of them cut short."""
    try:
        if not isinstance(json.loads((folder / REPORT).read_text(encoding="utf-8")), dict):
            return False
        for name in files:
            check_whole(folder / name)
        return all((folder / name).stat().st_size for name in files)
    except (OSError, ValueError):
        return False


def build_once(folder: Path, files: Sequence[str], make: Callable[[Path, Path], dict[str, Any]]) -> float:
    """Fill ``folder`` of the cache unless it is whole; the seconds that it took, 0 when it was there already.

    Args:
        files: names that the build has, its report aside.
        make: called with a scratch folder and a folder to fill; returns what the report holds beside key and time.

    Raises:
        EnvironmentLacks: ``TF-ENV-011`` the cache cannot be written.
        ForgeError: whatever ``make`` raises; nothing is left then.
    """
    if is_whole(folder, files):
        return 0.0
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if is_whole(folder, files):
                return 0.0
            for left in folder.parent.glob(f".{folder.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
            begin = time.monotonic()
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
                ready = Path(scratch) / "ready"
                ready.mkdir()
                report = make(Path(scratch), ready)
                seconds = time.monotonic() - begin
                report = {"key": folder.name, "seconds": round(seconds, 1), **report}
                (ready / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)
                ready.rename(folder)
            return seconds
    except OSError as error:
        raise EnvironmentLacks(
            "TF-ENV-011",
            f"the plugin cache cannot be written: {error.strerror or error}",
            asked=str(folder.parent),
            why=str(error),
            remedies=[f"set {VARIABLE} to a folder that can be written, with some 200 MB free"],
        ) from error


def call(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a tool; interrupted, it ends with everything that it started.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with ended_with_us(process, 5.0):
        output, _ = process.communicate()
    return process.returncode, output


def answer_of(command: Sequence[str]) -> str:
    """What a tool prints when asked for its version; "" when it does not start or fails."""
    with contextlib.suppress(OSError):
        code, output = call(command)
        if code == 0:
            return output.strip()
    return ""
