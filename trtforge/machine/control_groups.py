"""Where the limits of this process's control groups stand, in both versions of the interface.

Every group above a process binds it, so all of them are read up to the root that is mounted here. Inside a container
``/proc/self/cgroup`` may name a path of the host that is not mounted: then the mounted root is the container's group.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/memory.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Version = Literal["v1", "v2"]
V1: Version = "v1"
V2: Version = "v2"


def folders(
    controller: Literal["memory", "cpu"], root: Path | None = None, groups: Path | None = None
) -> Iterator[tuple[Version, Path]]:
    """The folders of the groups that hold this process, the innermost first, with the version of their files.

    Args:
        root: where control groups are mounted; default /sys/fs/cgroup.
        groups: the process's groups, as the kernel lists them; default /proc/self/cgroup.
    """
    root = root or Path("/sys/fs/cgroup")
    try:
        lines = (groups or Path("/proc/self/cgroup")).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            # where both versions are mounted, the new one lies beside the old controllers
            version, base = V2, root if (root / "cgroup.controllers").exists() else root / "unified"
        elif controller in names.split(","):
            version, base = V1, root / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = base.joinpath(*parts[:depth])
            if folder.is_dir():
                yield version, folder


def numbers(path: Path) -> list[int]:
    """The whole numbers that a file holds; empty where it cannot be read. "max" is no number."""
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
    return [int(word) for word in words if word.lstrip("-").isdigit()]


def figure(path: Path, name: str) -> int:
    """The number behind ``name`` in a file of "name number" lines; 0 where there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    found = next((line.split() for line in lines if line.startswith(f"{name} ")), [])
    return int(found[1]) if len(found) == 2 and found[1].isdigit() else 0
