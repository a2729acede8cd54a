"""Docstrings that are said to users: a rule's is why what it finds cannot work, a command's is its help."""

from __future__ import annotations

import sys

from trtforge.ground.errors import EnvironmentLacks


def require_docstrings() -> None:
    """Refuse a Python that has stripped them.

    Raises:
        EnvironmentLacks: ``TF-ENV-033`` it runs with ``-OO``.
    """
    if sys.flags.optimize > 1:
        raise EnvironmentLacks(
            "TF-ENV-033",
            "this Python strips docstrings",
            asked="python -OO, or PYTHONOPTIMIZE=2",
            numbers={"optimize": sys.flags.optimize},
            why="Every rule's reason and every command's help is a docstring; findings would not say why.",
            remedies=["unset PYTHONOPTIMIZE", "python -O keeps docstrings, and does all else that -OO does"],
        )
