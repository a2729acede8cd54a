"""The scripts and manifests near a repository that may start a server on it."""

from __future__ import annotations

import os
from pathlib import Path

from triton_repo.lint.files import Unreadable, entries

#: folders beside a repository where starts are kept
_FOLDERS = ("launch", "scripts", "deploy", "docker", "compose", "k8s", "kubernetes", "manifests", "slurm")
_SUFFIXES = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".service", ".mk"})
_NAMES = ("Dockerfile", "Containerfile", "Makefile")
MAX_FILES = 200
MAX_SIZE = 1 << 20


def launch_files_near(repository: Path) -> list[Path]:
    """Scripts and manifests at, beside or in a usual folder beside a repository, at most :data:`MAX_FILES`."""
    root = Path(os.path.realpath(repository))
    found: list[Path] = []
    for folder in (root, root.parent, *(root.parent / name for name in _FOLDERS)):
        try:
            listing = entries(folder)
        except Unreadable:
            continue
        for entry in listing:
            named = Path(entry.name).suffix in _SUFFIXES or entry.name.startswith(_NAMES)
            if named and entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size <= MAX_SIZE:
                found.append(folder / entry.name)
    return found[:MAX_FILES]
