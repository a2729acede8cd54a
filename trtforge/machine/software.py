"""Python, the C library and installed distributions: what extension modules and wheels go by."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterable


def python_version() -> str:
    """``3.11``: the part of the version that extension modules depend on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def libc() -> str:
    """``glibc 2.36``: the C library of this Python; empty where it does not say (musl)."""
    return " ".join(platform.libc_ver()).strip()


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, from metadata (nothing is imported); None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def tool_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Installed versions by distribution name; ``absent`` when not installed."""
    return {name: installed(name) or "absent" for name in distributions}
