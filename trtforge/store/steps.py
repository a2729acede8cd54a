"""Named steps of publishing, so that a test can interrupt the store between any two of them.

In production :func:`step` is one comparison. The fault tests install a hook that kills the process
at the n-th step; the names document the order in which the store touches the disk.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def step(name: str) -> None:
    """Mark that the step called ``name`` was reached."""
    if _hook is not None:
        _hook(name)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Install (or with ``None`` remove) the function that every step calls."""
    global _hook
    _hook = hook
